"""Rounds of a batch played through one by one, to be compared with what the cost model says.

It follows the table of ``runtime.workers.draft``: who hits goes on with the prepared tokens, who
misses falls back; rows to be drafted again sit a round out, unless nobody would have drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from runtime.spec.cost.laws import KindLaw, Laws
from runtime.spec.cost.times import PairTimes
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import RoundPlan

HIT, JIT = ProposalKind.HIT, ProposalKind.JIT
LOOKUP, NONE = ProposalKind.LOOKUP, ProposalKind.NONE


@dataclass
class Played:
    """Sums over all rounds; ``gaps`` and ``blocks`` are of the first row's emissions."""

    seconds: float = 0.0
    rounds: int = 0
    tokens: int = 0
    verifications: int = 0
    hits: int = 0
    gaps: list[float] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def token_gaps(self) -> np.ndarray:
        """Seconds between tokens of the first row: 0 within a block."""
        behind = sum(self.blocks) - len(self.blocks)
        return np.concatenate([np.zeros(behind), self.gaps])


def play(
    times: PairTimes, laws: Laws, batch: int, plan: RoundPlan, *, rounds: int, seed: int = 0
) -> Played:
    """``rounds`` rounds of ``ssd``."""
    random = np.random.default_rng(seed)
    num_draft, width = plan.num_draft, plan.num_branches
    target, draft = times.target_beside, times.draft_beside
    counts = {
        kind: laws.kinds[kind].fan_out(_drafted(kind, num_draft), width) for kind in ProposalKind
    }
    rows: list[ProposalKind | None] = [NONE] * batch  # None: it sits the round out
    played, waited_s, since = Played(), 0.0, [0.0] * batch
    for _ in range(rounds):
        longest = max(_drafted(row, num_draft) for row in rows if row is not None)
        root = 1 + num_draft if LOOKUP in rows else 1
        ahead = draft.seconds(batch, root) + num_draft * draft.seconds(batch, width) + times.ahead_s
        round_s = waited_s + max(target.seconds(batch, 1 + longest), ahead) + times.exchange_s
        played.seconds += round_s
        played.rounds += 1
        waited_s = 0.0
        following: list[ProposalKind | None] = []
        missed = []
        for index, row in enumerate(rows):
            since[index] += round_s
            if row is None:
                following.append(JIT)
                continue
            accepted, rank = _outcome(random, laws.kinds[row], _drafted(row, num_draft))
            hit = rank < counts[row][accepted]
            played.tokens += accepted + 1
            played.verifications += 1
            played.hits += hit
            if index == 0:
                played.gaps.append(since[0])
                played.blocks.append(accepted + 1)
            since[index] = 0.0
            following.append(HIT if hit else NONE)
            if not hit:
                missed.append(index)
        if plan.fallback is Fallback.LOOKUP:
            for index in missed:
                following[index] = LOOKUP if random.random() < laws.lookup_share else NONE
        elif plan.fallback is Fallback.JIT and missed:
            at_once = len(missed) == batch
            for index in missed:
                following[index] = JIT if at_once else None
            call_s = draft.seconds(batch, 1) + times.again_s
            waited_s = num_draft * call_s if at_once else 0.0
        rows = following
    return played


def _drafted(kind: ProposalKind, num_draft: int) -> int:
    return 0 if kind is NONE else num_draft


def _outcome(random: np.random.Generator, law: KindLaw, drafted: int) -> tuple[int, int]:
    """Accepted tokens, and the bonus token's rank; one beyond all candidates is the last."""
    accepted = 0
    while accepted < drafted:
        rate = law.accept[min(accepted, len(law.accept) - 1)]
        if random.random() >= rate:
            break
        accepted += 1
    ranks = law.bonus if accepted == drafted else law.rejected
    return accepted, int(np.searchsorted(ranks.cumsum(), random.random(), side="right"))
