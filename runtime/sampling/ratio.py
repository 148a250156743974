"""The ratio rule: classical speculative sampling (Leviathan et al. 2023, Chen et al. 2023).

A token x drawn from q is accepted with probability min(1, p(x) / q(x)). At the first rejection
the bonus token is drawn from the residual max(0, p - q), normalised; if all are accepted, from
p. The emitted tokens follow p exactly. They depend on the drafts, so they are the target's in
law, not token for token.

q is the law that was drawn from: `draft_law` truncates, and what it returns is at once drawn
from (`draw`), divided by and subtracted. A lookup draft is a point mass: accepted with
probability p(x), residual p without x. Greedy needs no case of its own: p is then a point mass.
`saguaro` reshapes q where hits are worth more than accepted tokens, and is exact for the same
reason: its result is the law that is drawn from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from runtime.sampling.coupled import check_rows
from runtime.sampling.logits import (
    adjusted,
    check_logit,
    law,
    softmax_weights,
    top_ids,
    top_survivors,
)
from runtime.sampling.noise import Purpose, uniform
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import MAX_SUPPORT, Drafted, Proposal, SparseLaw, Verdict
from runtime.sampling.text_law import TextLaw

__all__ = ["SparseLaw", "draft_law", "draw", "residual", "saguaro", "verify"]

FloatArray = npt.NDArray[np.float32]
ProbArray = npt.NDArray[np.float64]
Uniforms = Callable[[int, int, Purpose], float]
"""(seed, position, purpose) -> a uniform in (0, 1)."""


def draft_law(
    logits: FloatArray,
    params: SamplingParams,
    ids_map: npt.NDArray[np.integer] | None = None,
    max_support: int = MAX_SUPPORT,
) -> SparseLaw:
    """The law to draw a drafted token from: the draft's own, cut to its likeliest ids.

    Args:
        logits: the draft's, float32 [Vd].
        params: the request's; the draft mirrors its cuts to be accepted more often.
        ids_map: target id of each draft id, int [Vd], no id twice; None if they are the same.
        max_support: ids to keep, at most MAX_SUPPORT. The rule is exact at any value, because
            the law returned is the one drawn from.

    Raises BackendError when the logits have NaN, +inf, or nothing above -inf.
    """
    peak = check_logit(logits.max())
    if params.is_greedy:
        ids, weights = top_ids(logits, 1), np.ones(1)
    else:
        ids = top_survivors(logits, params, max_support)
        weights = softmax_weights(logits[ids], peak, params.temperature)
    target_ids = ids if ids_map is None else ids_map[ids]
    return _positive(target_ids.astype(np.int32), weights / weights.sum())


def saguaro(q: SparseLaw, num_prepared: int, scale: float) -> SparseLaw:
    """Saguaro sampling: q with less mass on the tokens that branches are prepared for.

    ``q`` has its ids likeliest first. The mass of the first ``num_prepared`` + 1 (the drafted
    token itself is no candidate for the place it was rejected at) is multiplied by ``scale`` C,
    0 <= C < 1, and the law normalised: rejections then land on prepared tokens more often, at the
    price of more rejections (arXiv 2603.03251, Definition 14). Returns ``q`` itself where
    nothing lies beyond the prepared tokens: the scale would cancel, or leave nothing.
    """
    num_shaped = num_prepared + 1
    if num_shaped >= q.ids.size:
        return q
    probs = q.probs.copy()
    probs[:num_shaped] *= scale
    return _positive(q.ids, probs / probs.sum())


def draw(q: SparseLaw, u: float) -> int:
    """The target id that a uniform u in (0, 1) draws from q."""
    return int(q.ids[_index_at(q.probs, u)])


def residual(p: ProbArray, q: SparseLaw) -> ProbArray:
    """max(0, p - q), not normalised: the law of the bonus token after a rejection, [V].

    Where that is zero everywhere, p equals q but for rounding, and p itself is returned. A
    rejection is then a rounding accident, and p keeps the law exact.
    """
    rest = p.copy()
    rest[q.ids] = np.maximum(rest[q.ids] - q.probs, 0)
    return rest if rest.any() else p


def verify(
    logits: FloatArray,
    proposal: Proposal,
    params: SamplingParams,
    first_position: int,
    uniforms: Uniforms = uniform,
    text: TextLaw | None = None,
) -> Verdict:
    """Accept drafted tokens by the ratio of the two laws, up to the first rejection.

    Args:
        logits: float32 [R, V]; row i is the target's output for `first_position + i`. Uses
            the first len(proposal.tokens) + 1 rows, up to the one of the bonus token.
        proposal: the tokens, each with the law it was drawn from.
        first_position: position of the first drafted token (the bonus token's if none).
        uniforms: the uniforms to decide by, one a position and purpose.
        text: stands before the first row, and behind the bonus token afterwards.

    Raises UsageError for a `Drafted` without laws, for a token its law cannot have drawn, and
    for ids outside the target's vocabulary.
    """
    check_rows(logits, len(proposal.tokens))
    laws = _laws(proposal, logits.shape[-1])
    for row, (token, q) in enumerate(zip(proposal.tokens, laws, strict=True)):
        position = first_position + row
        p = _law_at(position, logits[row], params, text)
        # u * q < p is u < p / q without the division: never true where p is 0, always where
        # p equals q, since u lies strictly between 0 and 1.
        if not uniforms(params.seed, position, Purpose.ACCEPT) * q.prob(token) < p[token]:
            accepted, rest = row, residual(p, q)
            break
        if text is not None:
            text.take(token)
    else:
        accepted = len(proposal.tokens)
        position = first_position + accepted
        rest = _law_at(position, logits[accepted], params, text)
    bonus = _index_at(rest, uniforms(params.seed, position, Purpose.RESIDUAL))
    if text is not None:
        text.take(bonus)
    return Verdict(accepted, bonus)


def _law_at(
    position: int, row: FloatArray, params: SamplingParams, text: TextLaw | None
) -> ProbArray:
    """The law of a position, of its logits [V]."""
    values = row if text is None else text.adjusted(row)
    return law(adjusted(values, params, position), params)


def _positive(ids: npt.NDArray[np.int32], probs: ProbArray) -> SparseLaw:
    """The law without its zeros; rounding makes some at tiny temperatures."""
    kept = probs > 0
    return SparseLaw(ids[kept], probs[kept])


def _laws(proposal: Proposal, vocab_size: int) -> tuple[SparseLaw, ...]:
    """The law of each proposed token; that of a lookup token is a point mass."""
    if not isinstance(proposal, Drafted):
        laws = tuple(
            SparseLaw(np.array([token], np.int32), np.ones(1)) for token in proposal.tokens
        )
    elif proposal.law is None:
        raise UsageError(
            "the ratio rule needs the law each drafted token was drawn from and got none; "
            "draft with this rule's draft_token, or propose the tokens as Lookup"
        )
    else:
        laws = proposal.law
    for token, q in zip(proposal.tokens, laws, strict=True):
        if q.prob(token) == 0:
            raise UsageError(
                f"drafted token {token} has probability 0 in the law it claims to come from"
            )
        if not (q.ids.min() >= 0 and q.ids.max() < vocab_size):
            raise UsageError(
                f"the law of drafted token {token} has ids {q.ids.min()}..{q.ids.max()}, outside "
                f"the target's vocabulary 0..{vocab_size - 1}"
            )
    return laws


def _index_at(weights: ProbArray, u: float) -> int:
    """The index that u in (0, 1) selects by inverse CDF; one of weight 0 never is.

    The cumulative sum passes u * total at an index of positive weight, and u * total stays
    below the total even after rounding, so the index exists.
    """
    cumulative = weights.cumsum()
    return int(cumulative.searchsorted(u * cumulative[-1], side="right"))
