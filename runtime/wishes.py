"""What a caller asks an LLM for, read: values that are none are refused by name, and so is what no
round can be."""

from __future__ import annotations

from engines.errors import UsageError
from runtime.devices import DevicePair
from runtime.placement import AUTO, require_batch
from runtime.request import whole_number
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback


def read_drafter(name: str, mode: str, devices: DevicePair, *, has_draft: bool) -> Drafter:
    """Who drafts. Raises UsageError for a name that is none, and for what cannot be."""
    known = [each.value for each in Drafter]
    if name not in (AUTO, *known):
        raise UsageError(f"unknown drafter {name!r}; --drafter takes {', '.join(known)} or {AUTO}")
    if name == AUTO:
        if not has_draft:
            return Drafter.LOOKUP
        return Drafter.MODEL if devices.on_gpu else Drafter.BOTH
    drafter = Drafter(name)
    if drafter is not Drafter.LOOKUP and not has_draft:
        raise UsageError(
            f"--drafter {name} needs a draft model and this bundle has none; use --drafter lookup, "
            "or rebuild the bundle with --draft"
        )
    if drafter is Drafter.LOOKUP and mode == "ssd":
        raise UsageError(
            "mode ssd prepares outcomes with a draft model, and --drafter lookup does without; use "
            "--mode sd, or --drafter both, which looks up where that promises more"
        )
    if drafter is Drafter.LOOKUP and devices.on_gpu:
        raise UsageError(
            f"--drafter lookup with --device {devices}: lookups are the host's, and no round on a "
            "GPU waits for it; use --device cpu, or --drafter model"
        )
    if drafter is Drafter.BOTH and devices.draft.is_gpu:
        raise UsageError(
            f"--drafter both with --device {devices}: lookups are made where the draft is, and a "
            f"draft on a GPU makes none; use --device {devices.target},cpu, or --drafter model"
        )
    return drafter


def require_adaptable(mode: str, verify: str, devices: DevicePair, drafter: Drafter) -> None:
    if drafter is Drafter.LOOKUP and mode != "ar":
        raise UsageError(
            "--adaptive-length ends proposals where the draft model is unsure of itself, and "
            "lookups have none; leave it away"
        )
    if mode == "ar":
        raise UsageError("--adaptive-length has no effect in mode ar; leave it away")
    if verify != "coupled":
        raise UsageError(
            "--adaptive-length leaves drafted tokens out because of what they are, which changes "
            "the law that --verify ratio emits; leave one of the two away"
        )
    if devices.on_gpu:
        raise UsageError(
            f"--adaptive-length with --device {devices}: the round's tokens never reach the host "
            "there, and verifying one more costs a GPU next to nothing; leave it away"
        )


def read_batch(value: int | None, built: int) -> int:
    number = built if value is None else whole_number(value)
    if number is None or number < 1:
        raise UsageError(f"max_batch is {value!r}, expected a whole number of at least 1")
    require_batch(number, built)
    return number


def read_fallback(name: str) -> Fallback | None:
    """None for ``auto``."""
    known = [each.value for each in Fallback]
    if name not in (AUTO, *known):
        raise UsageError(
            f"unknown fallback {name!r}; --fallback takes {', '.join(known)} or {AUTO}"
        )
    return None if name == AUTO else Fallback(name)


def read_saguaro(value: float | str, verify: str) -> float | None:
    """None for ``auto``."""
    is_auto = isinstance(value, str) and value == AUTO
    is_share = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
    if not is_auto and not is_share:
        raise UsageError(f"saguaro is {value!r}, expected a number from 0 to 1, or {AUTO!r}")
    if value != 1 and verify == "coupled":
        raise UsageError(
            "--saguaro shapes the law that drafts are drawn from, which the coupled rule does not "
            "have; add --verify ratio, or leave it away"
        )
    return None if is_auto else float(value)


def read_count(name: str, value: int | None) -> int | None:
    """A limit given by the caller as a plain int; None leaves it to the bundle."""
    number = None if value is None else whole_number(value)
    if value is not None and (number is None or number < 0):
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least 0")
    return number
