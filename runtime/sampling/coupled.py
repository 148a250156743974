"""The coupled rule: the target's token depends on the target's law and the seed alone.

The token at position n is argmax over ids of  l + T * g(seed, n, id)  with l the processed
logits, T the temperature and g standard Gumbel noise: a draw from softmax(l / T). A drafted
token is accepted iff it equals that token. So every mode, draft and schedule gives the same
tokens for a seed; a draft that uses the same g on its own logits is accepted often
("Drafter-invariant speculative decoding", Daliri, Musco, Suresh, arXiv 2408.07978).

l + T * g instead of l / T + g: a tiny temperature then fades into the greedy choice instead of
overflowing. Product and sum are float32, rounded one after the other (no fused multiply-add).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from runtime.sampling.logits import (
    adjusted,
    best_survivor,
    check_logit,
    survivors,
    top_ids,
)
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Verdict
from runtime.sampling.text_law import TextLaw

FloatArray = npt.NDArray[np.float32]

# Beyond this temperature the law is uniform to float32; clamping keeps T * g finite.
_MAX_SCALE = 1e30


def choose(logits: FloatArray, params: SamplingParams, noise: FloatArray | None) -> int:
    """The token of one position: logits float32 [V] and noise float32 [>= V] -> id.

    `noise` may be None only when greedy. Of equal values the lowest id wins. Raises
    BackendError when the logits have NaN, +inf, or nothing above -inf.
    """
    if params.is_greedy:
        scores = logits
    elif noise is None:
        raise UsageError(f"temperature {params.temperature} needs noise to choose a token by")
    else:
        scores = _perturbed(logits, params, noise)
        if params.truncates:
            return best_survivor(scores, logits, params)
    best = int(scores.argmax())
    check_logit(scores[best])
    return best


def verify(
    logits: FloatArray,
    drafts: Sequence[int],
    params: SamplingParams,
    noise_at: Callable[[int], FloatArray],
    first_position: int,
    text: TextLaw | None = None,
) -> Verdict:
    """Accept the drafted tokens that equal the target's own, up to the first that does not.

    Args:
        logits: float32 [R, V]; row i is the target's output for `first_position + i`. Uses
            the first len(drafts) + 1 rows, and of these only those up to the bonus token.
        drafts: drafted token ids, the first for `first_position`.
        noise_at: position -> noise float32 [>= V]; not called when greedy.
        first_position: position of the first drafted token (the bonus token's if none).
        text: stands before the first row, and behind the bonus token afterwards.
    """
    check_rows(logits, len(drafts))
    for row in range(len(drafts) + 1):
        position = first_position + row
        noise = None if params.is_greedy else noise_at(position)
        values = logits[row] if text is None else text.adjusted(logits[row])
        token = choose(adjusted(values, params, position), params, noise)
        if text is not None:
            text.take(token)
        if row == len(drafts) or token != drafts[row]:
            break
    return Verdict(accepted=row, bonus=token)


def candidates(
    logits: FloatArray,
    params: SamplingParams,
    noise: FloatArray | None,
    num: int,
    exclude: int | None = None,
) -> npt.NDArray[np.int32]:
    """The draft's guesses of a position's token, likeliest first: int32 [num] (fewer if V is).

    Ranks the ids of `logits` float32 [V] by perturbed logits, or by plain logits when `noise`
    is None or at temperature 0. Ids that the parameters cut come last, by plain logits: the
    target may have kept them. `exclude` is an id known not to be the token, such as the
    drafted token at the place where the target rejects it.
    """
    wanted = num + (exclude is not None)
    if params.is_greedy or noise is None:
        ranked = top_ids(logits, wanted)  # the survivors are the first of these
    else:
        ids = survivors(logits, params)
        ranked = top_ids(_perturbed(logits, params, noise, ids), wanted)
        if ids is not None:
            ranked = ids[ranked]
            if ids.size < wanted:
                ranked = np.concatenate([ranked, top_ids(logits, wanted)[ids.size :]])
    if exclude is not None:
        ranked = ranked[ranked != exclude]
    return ranked[:num].astype(np.int32)


def check_rows(logits: FloatArray, num_drafts: int) -> None:
    """Raise UsageError unless `logits` [R, V] has a row for each draft and the bonus token."""
    if logits.shape[0] <= num_drafts:
        raise UsageError(
            f"{num_drafts} drafted tokens need {num_drafts + 1} rows of logits, "
            f"found {logits.shape[0]}"
        )


def _perturbed(
    logits: FloatArray,
    params: SamplingParams,
    noise: FloatArray,
    ids: npt.NDArray[np.intp] | None = None,
) -> FloatArray:
    """l + T * g of all ids, or of the given ones."""
    kept = slice(logits.size) if ids is None else ids
    scores = noise[kept] * np.float32(min(params.temperature, _MAX_SCALE))
    scores += logits[kept]
    return scores
