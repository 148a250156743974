"""The cost model's host term: what the runtime's own work adds to a round on this machine.

Measured, for one setting, beside engines other than those that are replayed: one of the two takes
half of its time and the other next to none, so that it is plain which of them sets the pace.

    who takes its time    a round then takes
    --------------------  -----------------------------------------------------------------------
    the target            its call + exchange_s; where all rows missed and were drafted just in
                          time, also K calls of the draft + K * again_s
    the draft (``ssd``)   K + 1 calls + exchange_s + ahead_s
    the target (``sd``)   its call + K calls of the draft + exchange_s

From here on the replayed times, the law and the frequencies of these rounds are the model's to
combine. Means, as what is predicted is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from runtime.bench.replay.measure import Measured, measure
from runtime.spec.cost.laws import Laws
from runtime.spec.cost.times import CallTimes, PairTimes, Scaled
from runtime.spec.plan import RoundPlan

BUSY, IDLE = 0.5, 0.05
"""Of an engine's time: the one that sets the pace, and the other one."""
NUM_ROUNDS, WARM_UP = 150, 30


@dataclass(frozen=True, slots=True)
class HostTerm:
    """Seconds; see the module's table and ``PairTimes``."""

    exchange_s: float
    ahead_s: float
    again_s: float

    def beside(self, times: PairTimes) -> PairTimes:
        """``times`` with this term."""
        return replace(
            times, exchange_s=self.exchange_s, ahead_s=self.ahead_s, again_s=self.again_s
        )


Both = Callable[[PairTimes], tuple[Measured, Measured]]
"""The same rounds under the given times, on the real and on the virtual clock."""


def host_term(plan: RoundPlan, times: PairTimes, laws: Laws, batch: int) -> HostTerm:
    """Measure that of one setting; takes NUM_ROUNDS rounds of half a verification, in ``ssd`` as
    many of half a drafting."""

    def both(scaled: PairTimes) -> tuple[Measured, Measured]:
        real, virtual = (
            measure(plan, scaled, laws, batch, NUM_ROUNDS, is_real=is_real, warm_up=WARM_UP)
            for is_real in (True, False)
        )
        return real, virtual

    return term_of(plan, times, both)


def term_of(plan: RoundPlan, times: PairTimes, both: Both) -> HostTerm:
    """The same by any way to run rounds."""
    usual, again = _added(*both(scaled(times, target=BUSY, draft=IDLE)))
    if plan.mode != "ssd":
        return HostTerm(_mean(usual + again), 0.0, 0.0)
    exchange_s = _mean(usual or again)
    again_s = max(0.0, _mean(again) - exchange_s) / plan.num_draft if usual and again else 0.0
    usual, again = _added(*both(scaled(times, target=IDLE, draft=BUSY)))
    return HostTerm(exchange_s, _mean(usual or again) - exchange_s, again_s)


def scaled(times: PairTimes, *, target: float, draft: float) -> PairTimes:
    """Calls of both engines, times these factors."""

    def of(calls: CallTimes, factor: float) -> CallTimes:
        return Scaled(calls, factor)

    return PairTimes(
        of(times.target, target),
        of(times.target_beside, target),
        of(times.draft, draft),
        of(times.draft_beside, draft),
    )


def _added(real: Measured, virtual: Measured) -> tuple[list[float], list[float]]:
    """Seconds that rounds took longer on the real clock: those that began with what was there, and
    those for which all rows were drafted just in time."""
    usual: list[float] = []
    again: list[float] = []
    for took, ideal, was_again in zip(
        real.rounds_s, virtual.rounds_s, virtual.were_again, strict=True
    ):
        (again if was_again else usual).append(took - ideal)
    return usual, again


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
