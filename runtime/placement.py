"""Which mode runs on which cores and GPUs. Pure: cores in, decision out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engines.errors import CapacityError, UsageError
from runtime.device.cores import split_cores
from runtime.devices import DevicePair
from runtime.round import MODES

AUTO = "auto"
OPTION_MODES = {
    "num_draft": ("sd", "ssd"),
    "drafter": ("sd", "ssd"),
    "branches": ("ssd",),
    "fallback": ("ssd",),
    "saguaro": ("ssd",),
}
"""The modes that an option has any effect in."""
OPTION_DEFAULTS = {
    "num_draft": None,
    "drafter": AUTO,
    "branches": None,
    "fallback": AUTO,
    "saguaro": 1,
}
"""What asks for nothing."""


def idle_options(mode: str, given: Mapping[str, object]) -> list[str]:
    """The options among ``given``, as a command line spells them, that ``mode`` does not have."""
    return [
        "--" + name.replace("_", "-")
        for name, modes in OPTION_MODES.items()
        if given[name] != OPTION_DEFAULTS[name] and mode not in (*modes, AUTO)
    ]


@dataclass(frozen=True, slots=True)
class Placement:
    """The mode to run, the cores of each side, and why it is not the mode that was asked for.

    An engine on a GPU has no cores: its thread only enqueues.
    """

    mode: str
    target_cores: tuple[int, ...]
    draft_cores: tuple[int, ...]
    note: str | None = None
    devices: DevicePair = DevicePair()  # noqa: RUF009 - frozen


def place(mode: str, cores: Sequence[int], quota: float | None, *, has_draft: bool) -> Placement:
    """Cores for ``mode``. Plain and synchronous decoding give the target all of them. Without a
    draft ``sd`` looks its drafts up.

    ``quota`` is a container's limit in cores (None: no limit): threads beyond it only wait.
    Raises UsageError for an unknown mode, or ``ssd`` without a draft.
    """
    _require_mode(mode)
    if mode == "ssd" and not has_draft:
        raise UsageError(
            "mode ssd prepares outcomes with a draft and this bundle has none; use --mode sd, "
            "which then looks drafts up in the text, or rebuild the bundle with --draft"
        )
    usable = _usable(cores, quota)
    if mode == "ssd":
        split = split_cores(usable)
        if split.is_shared:
            note = "ssd needs a core for the draft beside the target's; with one core it runs as sd"
            return Placement("sd", usable, usable, note)
        return Placement("ssd", split.target_cores, split.draft_cores)
    return Placement(mode, usable, usable)


def place_on_gpus(
    mode: str, devices: DevicePair, cores: Sequence[int], quota: float | None, *, has_draft: bool
) -> Placement:
    """``mode`` on these devices. A draft on the CPU gets all cores but the first, where there are
    more: the threads that feed the GPU need one.

    Raises UsageError for an unknown mode, or a speculative one without a draft: what looks drafts
    up is on the host, and no round on a GPU waits for it.
    """
    _require_mode(mode)
    if mode != "ar" and not has_draft:
        raise UsageError(
            f"mode {mode} with --device {devices} needs a draft and this bundle has none; use "
            "--mode ar, or --device cpu --mode sd, which looks drafts up, or rebuild the bundle "
            "with --draft"
        )
    draft_cores: tuple[int, ...] = ()
    if mode != "ar" and not devices.draft.is_gpu:
        usable = _usable(cores, quota)
        draft_cores = usable[1:] or usable
    return Placement(mode, (), draft_cores, devices=devices)


def _require_mode(mode: str) -> None:
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; --mode takes {', '.join(MODES)} or {AUTO}")


def _usable(cores: Sequence[int], quota: float | None) -> tuple[int, ...]:
    usable = tuple(cores)
    return usable if quota is None else usable[: max(1, math.ceil(quota))]


def require_batch(number: int, built: int) -> None:
    """Raise CapacityError where a bundle was built for fewer prompts at once."""
    if number > built:
        raise CapacityError(
            f"a batch of {number}, this bundle was built for {built}; rebuild it with "
            f"--max-batch {number}"
        )
