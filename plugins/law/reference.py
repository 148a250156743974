"""What the logits of a row become before a token is drawn, in numpy by plain sorting.

In this order:

    mask         ids of the padded tail, behind the real vocabulary, become -inf
    repetition   an id seen in the prompt or generated so far: l / r where l > 0, l * r otherwise
    frequency    l - f * (how often the id was generated)
    presence     l - s where the id was generated at all
    bias         l + bias of the id
    ban          ids that are banned at the row's position become -inf
    top_k        the k largest stay
    top_p        of these, renormalised, the fewest most likely ones stay whose mass reaches top_p
    min_p        of these, the ones at least min_p times as likely as the most likely one stay

The law is softmax(l / temperature) of what stays. At temperature 0 nothing is cut, and all mass
lies on the largest logit. "Generated" counts the drafted tokens before the row's place too: the
row is only used if they are accepted. Each line of the adjustment is one float32 operation,
rounded by itself. Of equal logits the lower ids rank first.

A row is damaged when it holds NaN or +inf, or nothing above -inf after the adjustment: there is
no law then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IdArray = npt.NDArray[np.intp]
ProbArray = npt.NDArray[np.float64]

_LOWEST_LOGIT = float(np.finfo(np.float32).min)


@dataclass(frozen=True, slots=True)
class LawParams:
    """The parameters of one sequence; these values leave the logits as they are."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    @property
    def truncates(self) -> bool:
        """True when ids may be cut before a token is drawn."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True, slots=True, eq=False)
class Edits:
    """The ids of one sequence whose logits are adjusted, all arrays [N].

    ids        int32, ascending, no id twice
    bias       float32, -inf forbids an id
    generated  int32, how often the sequence has generated the id, drafts not counted
    in_prompt  bool
    """

    ids: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    bias: FloatArray = field(default_factory=lambda: np.empty(0, np.float32))
    generated: npt.NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    in_prompt: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one sequence of a batch samples with.

    first_position  of its first row
    banned_ids      no id twice, those without mass before position `banned_before`
    """

    params: LawParams = field(default_factory=LawParams)
    seed: int = 0
    first_position: int = 0
    edits: Edits = field(default_factory=Edits)
    banned_ids: tuple[int, ...] = ()
    banned_before: int = 0

    def banned_at(self, position: int) -> tuple[int, ...]:
        return self.banned_ids if position < self.banned_before else ()


def adjusted(
    logits: FloatArray,
    params: LawParams,
    edits: Edits,
    drafts_before: Sequence[int] = (),
    vocab_size: int | None = None,
    banned: Sequence[int] = (),
) -> FloatArray:
    """Masked tail, penalties, bias and bans: float32 [V] -> a new float32 [V].

    Args:
        drafts_before: the drafted tokens before this row's place, in target ids.
        vocab_size: ids of the real vocabulary; None means all V.
        banned: ids without mass; those outside the vocabulary do not count.
    """
    row = logits.astype(np.float32)
    row[row.size if vocab_size is None else vocab_size :] = -np.inf
    bias, generated, in_prompt = (np.zeros(row.size, each) for each in (np.float32, int, bool))
    bias[edits.ids] = edits.bias
    generated[edits.ids] = edits.generated
    in_prompt[edits.ids] = edits.in_prompt
    for token in drafts_before:
        if 0 <= token < row.size:
            generated[token] += 1

    penalty, frequency = np.float32(params.repetition), np.float32(params.frequency)
    seen = in_prompt | (generated > 0)
    row[seen] = np.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    row = row - frequency * generated.astype(np.float32)
    row[generated > 0] -= np.float32(params.presence)
    with np.errstate(invalid="ignore"):  # +inf and a forbidding bias: damaged either way
        row = np.asarray(row + bias, np.float32)
    row[[each for each in banned if 0 <= each < row.size]] = -np.inf
    return row


def is_damaged(row: FloatArray) -> bool:
    """True for a row that is no law, see above."""
    return not math.isfinite(float(row.max()))


def ranking(row: FloatArray) -> IdArray:
    """All ids, the largest logit first, of equal ones the lower ids first. No NaN."""
    return np.lexsort((np.arange(row.size), -row))


def survivors(row: FloatArray, params: LawParams) -> IdArray:
    """The ids that no cut removes, ascending. `row` is adjusted and not damaged."""
    order = ranking(row)
    if not params.truncates:
        return np.sort(order)
    peak = float(row.max())
    if params.top_k:
        order = order[: params.top_k]
    if params.top_p < 1:
        mass = _weights(row[order], peak, params.temperature).cumsum()
        order = order[: int(mass.searchsorted(params.top_p * mass[-1])) + 1]
    if params.min_p > 0:
        floor = max(peak + params.temperature * math.log(params.min_p), _LOWEST_LOGIT)
        order = order[row[order] >= np.float32(floor)]
    return np.sort(order)


def law(row: FloatArray, params: LawParams) -> ProbArray:
    """The probabilities float64 [V] of an adjusted row that is not damaged."""
    probs = np.zeros(row.size)
    if params.temperature == 0:
        probs[row.argmax()] = 1.0
        return probs
    kept = survivors(row, params)
    weights = _weights(row[kept], float(row.max()), params.temperature)
    probs[kept] = weights / weights.sum()
    return probs


def _weights(values: FloatArray, peak: float, temperature: float) -> ProbArray:
    with np.errstate(over="ignore"):
        return np.asarray(np.exp((values.astype(np.float64) - peak) / temperature))
