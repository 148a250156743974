"""What a pair on GPUs cannot do, refused by name before anything is loaded."""

from __future__ import annotations

from engines.errors import CapacityError, UsageError
from runtime.spec.fallback import Fallback


def require_nothing_kept(num_positions: int) -> None:
    """Raises CapacityError where rows of an earlier text are to be used: a GPU's kernels round
    them otherwise than the call that would write them anew."""
    if num_positions:
        raise CapacityError(
            f"{num_positions} cache rows of an earlier text are to be used, and a pair on GPUs "
            "keeps none; open it without prefix reuse"
        )


def require_supported(verify: str, fallback: Fallback, *, draft_on_gpu: bool = True) -> None:
    """Raises UsageError unless a target on a GPU can judge by the rule ``verify``, with a draft
    there or on the host that falls back in this way.

    The ratio rule's laws would have to travel with each proposal. ``jit`` and ``lookup`` need the
    host between a verdict and the next call, where no stream waits for it.
    """
    if verify != "coupled":
        raise UsageError(
            f"--verify {verify} is for pairs on the CPU: a target on a GPU judges by the coupled "
            "rule; leave --verify out"
        )
    allowed = {Fallback.ZERO} if draft_on_gpu else {Fallback.ZERO, Fallback.LOOKUP}
    if fallback not in allowed:
        names = " or ".join(sorted(each.value for each in allowed))
        place = "on" if draft_on_gpu else "for a target on"
        raise UsageError(
            f"--fallback {fallback.value} would let the pair wait for the host after a miss, which "
            f"a draft {place} a GPU does not; use --fallback {names}"
        )
