"""Which device runs which engine, as it is asked for: ``--device cuda:0,cuda:1``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from engines.errors import UsageError

_GPU = re.compile(r"cuda(?::([0-9]{1,3}))?")
EXPECTED = (
    "cpu, cuda:0 (both engines on one GPU), cuda:0,cuda:1 (target, draft) or cuda:0,cpu (the "
    "draft on the CPU)"
)


@dataclass(frozen=True, slots=True)
class DeviceName:
    """The CPU, or the GPU with this number."""

    ordinal: int | None = None

    @property
    def is_gpu(self) -> bool:
        return self.ordinal is not None

    def __str__(self) -> str:
        return "cpu" if self.ordinal is None else f"cuda:{self.ordinal}"


CPU = DeviceName()


@dataclass(frozen=True, slots=True)
class DevicePair:
    """The devices of the target and of the draft.

    ``draft_sm_share``: on one GPU, the part of its multiprocessors that is the draft's alone; None
    for all of them, shared, with the target's work first.
    """

    target: DeviceName = CPU
    draft: DeviceName = CPU
    draft_sm_share: float | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether the target runs on a GPU; no draft does so without it."""
        return self.target.is_gpu

    @property
    def is_shared(self) -> bool:
        """Whether both engines run on one GPU."""
        return self.on_gpu and self.target == self.draft

    def __str__(self) -> str:
        return str(self.target) if self.target == self.draft else f"{self.target},{self.draft}"


def parse_devices(text: str, draft_sm_share: float | None = None) -> DevicePair:
    """Read ``cpu``, ``cuda:0``, ``cuda:0,cuda:1`` or ``cuda:0,cpu``. Raises UsageError."""
    names = [_parse(part.strip(), text) for part in text.split(",")]
    if len(names) > 2:
        raise UsageError(f"--device {text!r} names {len(names)} devices, expected {EXPECTED}")
    pair = DevicePair(names[0], names[-1], draft_sm_share)
    if pair.draft.is_gpu and not pair.on_gpu:
        raise UsageError(
            f"--device {text!r} puts the target on the CPU beside a GPU; the target is the larger "
            f"engine: --device {pair.draft},cpu, or cpu for both"
        )
    if draft_sm_share is not None:
        is_number = isinstance(draft_sm_share, int | float)
        if not is_number or not 0 < draft_sm_share < 1:
            raise UsageError(
                f"--draft-sm-share is {draft_sm_share!r}, expected a part of the GPU above 0 and "
                "below 1"
            )
        if not pair.is_shared:
            raise UsageError(
                f"--draft-sm-share divides one GPU between both engines, and --device is {pair}; "
                "leave it away"
            )
    return pair


def require_one_gpu_each(num_ranks: int) -> None:
    """Raise UsageError for a target spread over several GPUs, which nothing here can run yet."""
    if num_ranks < 1:
        raise UsageError(f"--tensor-parallel is {num_ranks}, expected 1")
    if num_ranks > 1:
        raise UsageError(
            f"--tensor-parallel {num_ranks}: an engine runs on one GPU here, since its graph has "
            "no collective operations to sum the parts with (ARCHITECTURE.md says what it takes); "
            "use --tensor-parallel 1 and a precision whose weights fit one GPU (int8, int4)"
        )


def _parse(part: str, text: str) -> DeviceName:
    if part == "cpu":
        return CPU
    match = _GPU.fullmatch(part)
    if match is None:
        raise UsageError(f"--device {text!r} is no device, expected {EXPECTED}")
    return DeviceName(int(match[1] or 0))
