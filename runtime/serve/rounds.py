"""What the engines did, round by round: sums since the start, the last rounds, the speed now."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundReport
from runtime.stats import Stats

NUM_KEPT = 512
WINDOW_S = 10
"""Seconds that the speed of now is the mean of."""


class RoundLog:
    """Told of each round by the thread that drives the engines, read from any other.

    Everything it holds only grows, or is replaced as a whole, so a reader needs no lock: at worst
    it sees a round half counted.

    num_drafts       proposals that were verified; ``num_draft_tokens`` the tokens of them,
                     ``num_accepted`` those that became text
    accepted_at[i]   proposals of which token i (from 0) became text
    proposals        rows of rounds by where their drafts came from (``none``: they had none)
    num_discarded    tokens accepted behind the end of a text
    hidden_s, exposed_s
                     seconds the draft worked that the target did not wait for, and did
    """

    def __init__(self, num_draft: int, clock: Callable[[], float] = monotonic) -> None:
        self.rounds_by_mode: Counter[str] = Counter()
        self._by_kind = dict.fromkeys(ProposalKind, 0)
        self.num_drafts = self.num_draft_tokens = 0
        self.num_emitted = self.num_discarded = 0
        self.accepted_at = [0] * num_draft
        self.verify_s = self.hidden_s = self.exposed_s = 0.0
        self.last: RoundReport | None = None
        self._clock = clock
        self._kept: deque[tuple[float, RoundReport]] = deque(maxlen=NUM_KEPT)
        self._seconds: deque[list[int]] = deque(maxlen=WINDOW_S + 1)  # [second, tokens in it]

    def __call__(self, report: RoundReport) -> None:
        """Fits ``runtime.ticket.OnRound``."""
        now = self._clock()
        emitted = discarded = drafts = drafted = 0
        by_kind, accepted_at = self._by_kind, self.accepted_at
        for row in report.rows:  # locals: it runs between two rounds
            by_kind[row.kind] += 1
            num = row.num_emitted
            emitted += num
            discarded += row.accepted + 1 - num
            if row.num_drafted:
                drafts += 1
                drafted += row.num_drafted
                accepted = min(row.accepted, num)
                while len(accepted_at) < accepted:  # looked-up proposals may be longer
                    accepted_at.append(0)
                for place in range(accepted):
                    accepted_at[place] += 1
        self.num_drafts += drafts
        self.num_draft_tokens += drafted
        self.num_emitted += emitted
        self.num_discarded += discarded
        self.rounds_by_mode[report.plan.mode] += 1
        self.verify_s += report.verify_s
        # Round by round: a counter may never fall, whatever a clock says of one round.
        self.hidden_s += max(0.0, report.draft_s - report.exposed_s)
        self.exposed_s += report.exposed_s
        self.last = report
        self._kept.append((now, report))
        self._count(int(now), emitted)

    def _count(self, second: int, num_tokens: int) -> None:
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += num_tokens
        else:
            self._seconds.append([second, num_tokens])

    @property
    def now_s(self) -> float:
        return self._clock()

    @property
    def num_accepted(self) -> int:
        return sum(self.accepted_at)

    @property
    def proposals(self) -> dict[str, int]:
        return {kind.name.lower(): self._by_kind[kind] for kind in ProposalKind}

    def tokens_per_second(self) -> float:
        """Tokens of the last full seconds, by their number; 0 where nothing runs."""
        now = int(self._clock())
        counted = [num for second, num in list(self._seconds) if now - WINDOW_S <= second < now]
        return sum(counted) / WINDOW_S

    def since(self, number: int, most: int = NUM_KEPT) -> list[dict[str, object]]:
        """Those of the last ``most`` rounds with a higher number, oldest first, as JSON."""
        last = list(self._kept)[-most:]
        return [_record(at_s, each) for at_s, each in last if each.number > number]


def _record(at_s: float, report: RoundReport) -> dict[str, object]:
    plan = report.plan
    return {
        "number": report.number,
        "at_s": round(at_s, 6),
        "mode": plan.mode,
        "num_draft": plan.num_draft,
        "num_branches": plan.num_branches,
        "fallback": plan.fallback.value,
        "drafter": plan.drafter.value,
        "round_ms": None if report.seconds is None else _ms(report.seconds),
        "verify_ms": _ms(report.verify_s),
        "draft_ms": _ms(report.draft_s),
        "exposed_ms": _ms(report.exposed_s),
        "rows": [
            {
                "slot": row.slot,
                "kind": row.kind.name.lower(),
                "hit": row.hit,
                "rank": row.rank,
                "is_behind": row.is_behind,
                "num_drafted": row.num_drafted,
                "accepted": row.accepted,
                "num_emitted": row.num_emitted,
            }
            for row in report.rows
        ],
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


@dataclass(slots=True)
class Hits:
    """Outcomes looked up and found prepared, by how the round before had begun: sums of the
    ``Stats`` of answers that have ended."""

    num_hits_after_hit: int = 0
    num_rounds_after_hit: int = 0
    num_hits_after_miss: int = 0
    num_rounds_after_miss: int = 0

    def add(self, stats: Stats) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(stats, name))

    def rate(self, after: str) -> float | None:
        """The share of outcomes prepared ``after`` a "hit" or a "miss"; None: there were none."""
        known = getattr(self, f"num_rounds_after_{after}")
        return getattr(self, f"num_hits_after_{after}") / known if known else None
