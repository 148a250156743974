"""How good a draft is on held-out answers of its target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from export.distill.corpus import Sample, collate
from export.distill.llama import Llama
from export.distill.vocabulary import to_draft

NUM_RANKS = 16
DRAFT_LENGTHS = (2, 3, 4, 5)
BATCH = 8


@dataclass(frozen=True, slots=True)
class Figures:
    """Held-out figures. A target token outside the draft's vocabulary counts as a miss."""

    num_sequences: int
    num_positions: int
    greedy: bool  # the answers were the target's greedy ones
    alpha: float  # share of positions where the draft's first candidate is the target's token
    rank_shares: tuple[float, ...]  # [NUM_RANKS], share where it is the f-th candidate
    tokens_per_round: dict[int, float]  # by K, a round = K drafted tokens and one of the target


def measure(draft: Llama, samples: Sequence[Sample], ids: npt.NDArray[np.int64]) -> Figures:
    """Figures on the greedy samples, or on all of them where none is greedy.

    Tokens a round is exact for greedy decoding: rounds are walked over each answer, and as long
    as drafts are accepted, the draft has read the very tokens that the answer holds.
    """
    greedy = [sample for sample in samples if sample.temperature == 0.0]
    chosen = greedy or list(samples)
    answers = list(_ranks(draft, chosen, ids))
    ranks = np.concatenate(answers)
    shares = np.bincount(ranks, minlength=NUM_RANKS + 1)[:NUM_RANKS] / len(ranks)
    return Figures(
        num_sequences=len(answers),
        num_positions=len(ranks),
        greedy=bool(greedy),
        alpha=float(shares[0]),
        rank_shares=tuple(float(share) for share in shares),
        tokens_per_round={
            num_draft: len(ranks) / sum(num_rounds(answer == 0, num_draft) for answer in answers)
            for num_draft in DRAFT_LENGTHS
        },
    )


def num_rounds(agrees: npt.NDArray[np.bool_], num_draft: int) -> int:
    """Rounds of ``num_draft`` drafts that an answer takes; ``agrees`` [tokens]: draft = target."""
    rounds = position = 0
    while position < len(agrees):
        block = agrees[position : position + num_draft]
        accepted = len(block) if block.all() else int(block.argmin())
        position += accepted + 1
        rounds += 1
    return rounds


def _ranks(
    draft: Llama, samples: Sequence[Sample], ids: npt.NDArray[np.int64]
) -> Iterator[npt.NDArray[np.int64]]:
    """Per answer: how many draft ids score above the target's token, at most NUM_RANKS."""
    import torch

    table = to_draft(ids, draft.spec.vocab_size)
    ordered = sorted(samples, key=len)
    for start in range(0, len(ordered), BATCH):
        batch = collate(ordered[start : start + BATCH])
        with torch.no_grad():
            hidden = draft.hidden(torch.from_numpy(batch.tokens))
            for row, labels in enumerate(batch.labels):
                (answer,) = np.nonzero(labels >= 0)
                scores = draft.logits(hidden[row, answer]).numpy()  # [answer, V']
                wanted = table[labels[answer]]
                own = scores[np.arange(len(answer)), wanted]
                ranks = np.minimum((scores > own[:, None]).sum(axis=1), NUM_RANKS)
                yield np.where(wanted >= 0, ranks, NUM_RANKS)
