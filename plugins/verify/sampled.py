"""Verification with a temperature, in numpy: the meaning that the kernels are tested against.

Both rules accept a prefix of a sequence's drafted block and give the token that follows. A sequence
that cannot be judged to its end accepts what comes before the broken place, its status says why,
and `next` is 0: an id outside the vocabulary would reach the next step's embedding lookup on the
device before a host has seen the status.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from plugins.law.reference import (
    LawParams,
    ProbArray,
    Sampling,
    adjusted,
    is_damaged,
    law,
    survivors,
)
from plugins.noise.reference import Purpose, gumbel, uniform

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

MAX_SCALE = 1e30
"""Beyond this temperature the law is uniform to float32; the bound keeps T * g finite."""


class Status(IntEnum):
    """How the judgement of a sequence ended."""

    DONE = 0
    DAMAGED = 1
    """The place after the accepted tokens has no law: NaN, +inf, or nothing above -inf."""
    FOREIGN_DRAFT = 2
    """The drafted token there has probability 0 in the law it claims to come from."""
    UNSCANNED = 3
    """Kernels only: the parameters cut, and the pass that finds the cut was not launched."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """accepted, next, status, each int64 [B]: the round emits drafts[:accepted], then `next`."""

    accepted: IntArray
    next: IntArray
    status: IntArray


def verify_coupled(
    logits: FloatArray,
    drafts: IntArray,
    num_draft: IntArray,
    samplings: Sequence[Sampling],
    vocab_size: int | None = None,
) -> Outcome:
    """Accept the drafted tokens that equal the target's own (`choose`), up to the first other.

    Args:
        logits: float32 [B, R, V]; entry i of a row is the target's output for its draft i.
        drafts: int64 [B, R-1], target ids.
        num_draft: int64 [B], how many drafts of a row count, from the left, 0..R-1.
        samplings: one a sequence.
        vocab_size: ids of the real vocabulary; None means all V.
    """
    return _outcome(
        _coupled(rows, row_drafts[:count], sampling, vocab_size)
        for rows, row_drafts, count, sampling in zip(
            logits, drafts.tolist(), num_draft.tolist(), samplings, strict=True
        )
    )


def verify_ratio(
    logits: FloatArray,
    drafts: IntArray,
    num_draft: IntArray,
    q_ids: npt.NDArray[np.int32],
    q_probs: ProbArray,
    samplings: Sequence[Sampling],
    vocab_size: int | None = None,
) -> Outcome:
    """Accept a token x drawn from q with probability min(1, p(x) / q(x)), up to a rejection.

    Leviathan et al. 2023, Chen et al. 2023: the token that follows is drawn from max(0, p - q) at
    the place of a rejection, from p where all are accepted. At T = 0, where p is a point mass, this
    is equality with the argmax, and q is not read.

    Args:
        q_ids: int32 [B, R-1, M], the ids that each draft was drawn among, no id twice; unused
            entries are -1.
        q_probs: float64 [B, R-1, M], their probabilities; 0 in unused entries.
        logits, drafts, num_draft, samplings, vocab_size: as in `verify_coupled`.
    """
    return _outcome(
        _ratio(rows, row_drafts[:count], ids, probs, sampling, vocab_size)
        for rows, row_drafts, count, ids, probs, sampling in zip(
            logits, drafts.tolist(), num_draft.tolist(), q_ids, q_probs, samplings, strict=True
        )
    )


def choose(row: FloatArray, params: LawParams, noise: FloatArray) -> int:
    """The coupled rule's token: argmax over the ids that no cut removes of l + T * g.

    l is the adjusted logit and g standard Gumbel noise, so it is a draw from softmax(l / T).
    Product and sum are rounded to float32 one after the other; of equal values the lowest id wins.
    At T = 0 it is argmax of l. ("Drafter-invariant speculative decoding", Daliri, Musco, Suresh,
    arXiv 2408.07978.)
    """
    if params.temperature == 0:
        return int(row.argmax())
    kept = survivors(row, params)
    scores = row[kept] + np.float32(min(params.temperature, MAX_SCALE)) * noise[kept]
    return int(kept[scores.argmax()])


def draw(weights: ProbArray, u: float) -> int:
    """The id that u in (0, 1) selects by inverse CDF in the order of ids; never one of weight 0."""
    cumulative = weights.cumsum()
    return int(cumulative.searchsorted(u * cumulative[-1], side="right"))


def _coupled(
    rows: FloatArray, drafts: list[int], sampling: Sampling, vocab_size: int | None
) -> tuple[int, int, Status]:
    for place in range(len(drafts) + 1):
        row = _adjusted(rows, sampling, drafts, place, vocab_size)
        if is_damaged(row):
            return place, 0, Status.DAMAGED
        noise = gumbel(sampling.seed, sampling.first_position + place, row.size)
        token = choose(row, sampling.params, noise)
        if place == len(drafts) or token != drafts[place]:
            break
    return place, token, Status.DONE


def _adjusted(
    rows: FloatArray, sampling: Sampling, drafts: list[int], place: int, vocab_size: int | None
) -> FloatArray:
    return adjusted(
        rows[place],
        sampling.params,
        sampling.edits,
        drafts[:place],
        vocab_size,
        sampling.banned_at(sampling.first_position + place),
    )


def _ratio(
    rows: FloatArray,
    drafts: list[int],
    q_ids: npt.NDArray[np.int32],
    q_probs: ProbArray,
    sampling: Sampling,
    vocab_size: int | None,
) -> tuple[int, int, Status]:
    params, seed = sampling.params, sampling.seed
    for place in range(len(drafts) + 1):
        row = _adjusted(rows, sampling, drafts, place, vocab_size)
        if is_damaged(row):
            return place, 0, Status.DAMAGED
        position = sampling.first_position + place
        rest = law(row, params)
        if place < len(drafts):
            token, p = drafts[place], rest
            if params.temperature == 0:
                if token == int(p.argmax()):
                    continue
            else:
                q = _dense(q_ids[place], q_probs[place], row.size)
                if not (0 <= token < row.size and q[token] > 0):
                    return place, 0, Status.FOREIGN_DRAFT
                # u * q < p is u < p / q without the division: never true where p is 0.
                if uniform(seed, position, Purpose.ACCEPT) * q[token] < p[token]:
                    continue
                rest = np.maximum(p - q, 0)
                # Where nothing is left p equals q but for rounding, and so does the rejection.
                rest = rest if rest.any() else p
        break
    return place, draw(rest, uniform(seed, position, Purpose.RESIDUAL)), Status.DONE


def _dense(ids: npt.NDArray[np.int32], probs: ProbArray, vocab_size: int) -> ProbArray:
    q = np.zeros(vocab_size)
    used = (ids >= 0) & (ids < vocab_size)
    q[ids[used]] = probs[used]
    return q


def _outcome(judged: Iterable[tuple[int, int, Status]]) -> Outcome:
    accepted, following, status = zip(*judged, strict=True)
    return Outcome(*(np.array(each, np.int64) for each in (accepted, following, status)))
