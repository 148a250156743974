"""The calls that rounds make, to be run once before there is a text to wait for their first run.

A compiled engine makes a context and loads kernels when it first runs a shape; TensorRT-RTX
compiles them, for seconds, and keeps them beside the plan. In a draft's work that would look like
a hang.
"""

from __future__ import annotations

from engines.manifest import TARGET
from engines.profiles import PROMPT_CHUNK, PROMPT_STEP
from runtime.backends.api import CallShape


def round_calls(
    role: str, mode: str, *, num_draft: int, num_branches: int, num_slots: int, min_tokens: int
) -> list[CallShape]:
    """An engine's calls in rounds of one text and of ``num_slots``, and for a prompt.

    ``min_tokens`` is the least width of the target's. Batches in between run first when they come,
    as does what follows when texts outgrow the rows bound at first.
    """
    calls = [
        CallShape(0, 1, width, 1) for width in range(PROMPT_STEP, PROMPT_CHUNK + 1, PROMPT_STEP)
    ]
    for batch in sorted({1, num_slots}):
        if role == TARGET:
            drafted = 0 if mode == "ar" else num_draft
            widths = {max(min_tokens, 1), max(min_tokens, 1 + drafted)}
            calls += [CallShape(0, batch, width, width) for width in sorted(widths)]
            continue
        calls.append(CallShape(0, batch, 1, 1))
        if mode == "sd":
            calls.append(CallShape(0, batch, 2, 1))
        else:
            calls += [
                CallShape(0, batch, num_branches, num_branches, copy=1 + depth)
                for depth in range(num_draft)
            ]
    return calls
