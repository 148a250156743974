"""What an LLM is opened with: the caller's wishes, checked against bundle and machine."""

from __future__ import annotations

from dataclasses import dataclass

from engines.bundle import Bundle
from engines.compat import require
from engines.errors import UsageError
from runtime.calibrate import choose_fallback, choose_mode, choose_saguaro
from runtime.device.cores import available_cores, cpu_quota
from runtime.loader import BACKEND
from runtime.placement import AUTO, Placement, idle_options, place, require_batch
from runtime.request import whole_number
from runtime.spec.fallback import Fallback


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything decided: ``note`` says why, where it is not what was asked for."""

    placement: Placement
    verify: str
    num_draft: int
    num_branches: int
    max_batch: int
    fallback: Fallback
    saguaro: float
    note: str | None


def settle(
    bundle: Bundle,
    *,
    mode: str,
    verify: str,
    num_draft: int | None,
    branches: int | None,
    max_batch: int | None,
    fallback: str,
    saguaro: float | str,
) -> Settings:
    """Decide what is left open (None, ``auto``), by measuring this machine where that needs it.

    Raises UsageError, BundleIncompatibleError or CapacityError for what cannot be.
    """
    for name, value in (("mode", mode), ("verify", verify), ("fallback", fallback)):
        if not isinstance(value, str):
            raise UsageError(f"{name} is {value!r}, expected a name")
    num_draft = _count("num_draft", num_draft)
    branches = _count("branches", branches)
    require(bundle, backend=BACKEND, num_draft=num_draft, branches=branches)
    limits = bundle.manifest.limits
    depth = limits.num_draft if num_draft is None else num_draft
    width = limits.max_branches if branches is None else branches
    batch = _batch(max_batch, limits.max_batch)
    after_miss = _fallback(fallback)
    share = _saguaro(saguaro, verify)
    given: dict[str, object] = {
        "num_draft": num_draft,
        "branches": branches,
        # Where nothing can miss, zero asks for nothing.
        "fallback": AUTO if after_miss is Fallback.ZERO else fallback,
        "saguaro": saguaro,
    }
    asked, note = mode, None
    if mode == AUTO:
        mode, note = choose_mode(bundle, depth, width)
    placement = place(mode, available_cores(), cpu_quota(), has_draft=bundle.draft is not None)
    if idle := idle_options(asked, given):
        raise UsageError(f"{', '.join(idle)} has no effect in mode {asked}; leave it away")
    _check_depth(placement, depth, width)
    prepares = placement.mode == "ssd"
    if after_miss is None:
        after_miss = choose_fallback(bundle, depth, width) if prepares else Fallback.ZERO
    if share is None:
        share = choose_saguaro(bundle, depth, width, after_miss) if prepares else 1.0
    notes = [placement.note or note]
    if idle := idle_options(placement.mode, given):
        notes.append(f"{', '.join(idle)} has no effect in {placement.mode}")
    return Settings(
        placement,
        verify,
        depth,
        width,
        batch,
        after_miss,
        share,
        "; ".join(filter(None, notes)) or None,
    )


def _batch(value: int | None, built: int) -> int:
    number = built if value is None else whole_number(value)
    if number is None or number < 1:
        raise UsageError(f"max_batch is {value!r}, expected a whole number of at least 1")
    require_batch(number, built)
    return number


def _fallback(name: str) -> Fallback | None:
    """None for ``auto``."""
    known = [each.value for each in Fallback]
    if name not in (AUTO, *known):
        raise UsageError(
            f"unknown fallback {name!r}; --fallback takes {', '.join(known)} or {AUTO}"
        )
    return None if name == AUTO else Fallback(name)


def _saguaro(value: float | str, verify: str) -> float | None:
    """None for ``auto``."""
    is_auto = isinstance(value, str) and value == AUTO
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_auto and not (is_number and 0 <= value <= 1):  # type: ignore[operator]
        raise UsageError(f"saguaro is {value!r}, expected a number from 0 to 1, or {AUTO!r}")
    if value != 1 and verify == "coupled":
        raise UsageError(
            "--saguaro shapes the law that drafts are drawn from, which the coupled rule does not "
            "have; add --verify ratio, or leave it away"
        )
    return None if is_auto else float(value)


def _count(name: str, value: int | None) -> int | None:
    """A limit given by the caller as a plain int; None leaves it to the bundle."""
    number = None if value is None else whole_number(value)
    if value is not None and (number is None or number < 0):
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least 0")
    return number


def _check_depth(placement: Placement, num_draft: int, num_branches: int) -> None:
    mode = placement.mode
    if mode != "ar" and num_draft < 1:
        raise UsageError(
            f"mode {mode} needs at least one drafted token: --num-draft 1, here or, where the "
            "bundle was built with none, when it is rebuilt"
        )
    if mode == "ssd" and num_branches < 1:
        raise UsageError(
            "mode ssd needs at least one branch: --branches 1 or, where the bundle was built "
            "with none, a rebuild with --max-branches 1 or more"
        )
