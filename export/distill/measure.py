"""How good a draft is on held-out answers of its target."""

from __future__ import annotations

from collections.abc import Sequence
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
    answers = ranks(draft, chosen, ids)
    every = np.concatenate(answers)
    shares = np.bincount(every, minlength=NUM_RANKS + 1)[:NUM_RANKS] / len(every)
    return Figures(
        num_sequences=len(answers),
        num_positions=len(every),
        greedy=bool(greedy),
        alpha=float(shares[0]),
        rank_shares=tuple(float(share) for share in shares),
        tokens_per_round={
            num_draft: len(every) / sum(num_rounds(answer == 0, num_draft) for answer in answers)
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


def ranks(
    draft: Llama, samples: Sequence[Sample], ids: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Per sample, for every answer token: how many draft ids score above it, at most NUM_RANKS."""
    import torch

    table = torch.from_numpy(to_draft(ids, draft.spec.vocab_size)).to(draft.device)
    found = [np.zeros(0, np.int64)] * len(samples)
    by_length = sorted(range(len(samples)), key=lambda index: len(samples[index]))
    for start in range(0, len(by_length), BATCH):
        part = by_length[start : start + BATCH]
        batch = collate([samples[index] for index in part])
        labels = torch.from_numpy(batch.labels).to(draft.device)
        with torch.inference_mode():
            hidden = draft.hidden(torch.from_numpy(batch.tokens).to(draft.device))
            for row, index in enumerate(part):
                answer = labels[row] >= 0
                scores = draft.logits(hidden[row, answer])  # [answer, V']
                wanted = table[labels[row, answer]]
                own = scores.gather(1, wanted.clamp(min=0)[:, None])
                # Not "scores > own": of a draft that has diverged, NaN would rank first.
                above = (~(scores <= own)).sum(dim=1).clamp(max=NUM_RANKS)
                found[index] = torch.where(wanted >= 0, above, NUM_RANKS).cpu().numpy()
    return found
