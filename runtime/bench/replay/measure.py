"""Running one setting over a law, and what is counted of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from runtime.bench.replay.clock import Clock, open_clock
from runtime.bench.replay.deal import Dealer
from runtime.bench.replay.pair import ReplayedPair
from runtime.scheduler import RoundReport
from runtime.spec.cost.laws import Laws
from runtime.spec.cost.times import PairTimes
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundPlan

SEED = 20260303
WARM_UP = 400
"""Rounds before those that count: the statistics begin with a prior and learn the law meanwhile."""
NUM_BEGUN = 5
"""Rounds at full length before those that count: more than are under way at a time."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one setting, over rounds in which every slot was busy.

    tokens_s      tokens a second of all rows together
    tokens_round  tokens that a verification of one row emitted, the bonus token included
    round_s       seconds of a round
    hit_rate      share of outcomes that had been prepared; after a hit, and after a miss; None
                  where none was looked up
    sat_out       share of the rows that waited for their drafts while others were judged
    rounds_s      seconds of each of them
    were_again    and whether all of its rows had been drafted just in time
    """

    num_rounds: int
    seconds: float
    tokens_s: float
    tokens_round: float
    round_s: float
    hit_rate: float | None
    hit_rate_after_hit: float | None
    hit_rate_after_miss: float | None
    sat_out: float
    rounds_s: tuple[float, ...]
    were_again: tuple[bool, ...]


def measure(
    plan: RoundPlan,
    times: PairTimes,
    laws: Laws,
    batch: int,
    num_rounds: int,
    *,
    is_real: bool,
    on_round: Callable[[int], None] = lambda _: None,
    warm_up: int | None = None,
) -> Measured:
    """Run it, ``warm_up`` rounds (None: WARM_UP) before those that count. The same arguments meet
    the same outcomes on both clocks, and on the virtual one they give the same figures each time.
    ``on_round`` is told how many rounds that count are done."""
    clock = open_clock(is_real=is_real)
    try:
        run = _Run(clock, plan, times, laws, batch)
        return run.measure(num_rounds, on_round, WARM_UP if warm_up is None else warm_up)
    finally:
        clock.device.close()


class _Run:
    """Counts what the scheduler reports."""

    def __init__(
        self, clock: Clock, plan: RoundPlan, times: PairTimes, laws: Laws, batch: int
    ) -> None:
        self._clock = clock
        self._batch = batch
        self._began_with_hit: dict[int, bool] = {}  # by slot: how its round before began
        self._forget(0.0)
        dealer = Dealer(laws, max(1, plan.num_branches), SEED)
        self._pair = ReplayedPair(clock, plan, times, dealer, batch, self._take)

    def measure(self, num_rounds: int, on_round: Callable[[int], None], warm_up: int) -> Measured:
        self._clock.skips = True
        while self._num_rounds < warm_up:
            self._pair.step()
        self._clock.skips = False
        self._settle()
        self._forget(self._marks[-1])
        while self._num_rounds < num_rounds:
            self._pair.step()
            on_round(self._num_rounds)
        measured = self._figures()
        self._pair.stop()
        return measured

    def _settle(self) -> None:
        """Rounds that were begun in haste."""
        begun = self._num_rounds
        while self._num_rounds < begun + NUM_BEGUN:
            self._pair.step()

    def _forget(self, began: float) -> None:
        """Begin to count."""
        self._marks = [began]
        self._were_again: list[bool] = []
        self._num_rounds = self._num_judged = self._num_tokens = 0
        self._hits, self._known = [0, 0], [0, 0]  # outcomes of rounds after a miss, after a hit

    def _take(self, report: RoundReport) -> None:
        self._marks.append(self._clock.now())
        self._num_rounds += 1
        is_again = all(row.kind is ProposalKind.JIT for row in report.rows)
        self._were_again.append(is_again and bool(report.rows))
        for row in report.rows:
            self._num_judged += 1
            self._num_tokens += row.accepted + 1
            if row.hit is not None:
                after_hit = self._began_with_hit[row.slot]
                self._known[after_hit] += 1
                self._hits[after_hit] += row.hit
            self._began_with_hit[row.slot] = row.kind is ProposalKind.HIT

    def _figures(self) -> Measured:
        seconds = self._marks[-1] - self._marks[0]
        after_miss, after_hit = map(_share, self._hits, self._known)
        return Measured(
            num_rounds=self._num_rounds,
            seconds=seconds,
            tokens_s=self._num_tokens / seconds,
            tokens_round=self._num_tokens / self._num_judged,
            round_s=seconds / self._num_rounds,
            hit_rate=_share(sum(self._hits), sum(self._known)),
            hit_rate_after_hit=after_hit,
            hit_rate_after_miss=after_miss,
            sat_out=1 - self._num_judged / (self._num_rounds * self._batch),
            rounds_s=tuple(after - before for before, after in pairwise(self._marks)),
            were_again=tuple(self._were_again),
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
