"""How long a round takes when engines take no time: the runtime's own work, and where it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep, thread_time

import numpy as np

from runtime.bench.figures import Spread, resident_bytes, spread
from runtime.bench.prescribed_pair import PrescribedPair, SteadyTexts
from runtime.device.api import Device
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager
from runtime.device.traced import TracedDevice

BUDGETS_US = {1: 100.0, 16: 300.0}
"""What the runtime may take of a round, by batch."""
WARM_UP = 300
LEAST_WARM_UP = 10
"""Behind the prompts: until they are read there are no rounds."""
NUM_STRETCHES = 3
SPLIT_SHARE = 5
"""One round in so many is run again to see where its time goes: clocks cost time themselves."""
NUM_PAUSES = 50

Tick = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class RoundsPlan:
    """What to run: ``rounds`` rounds of one mode and batch, after WARM_UP others."""

    mode: str
    batch: int
    rounds: int
    num_draft: int
    num_branches: int
    verify_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HostRounds:
    """One mode and batch; times in microseconds.

    round_us       from one round's end to the next one's
    engine_us      of that in the target's engine, as if it ran alone (the draft's: next to nothing)
    host_us        median of round_us - engine_us: the runtime's own, as far as nothing hides it
    budget_us      what it may be; None where none is set
    parts_us       processor time a round: the host's thread, and each kind of work on the streams
    alone_us       the streams' parts when one thread does it all: nobody waits for the interpreter
    rest_us        host_us - all parts: waiting, and hops between threads. Below 0 where work was
                   hidden, or really ran side by side
    acceptance, hit_rate, resident_bytes
                   at the start, in the middle and at the end
    """

    mode: str
    batch: int
    round_us: Spread
    engine_us: float
    host_us: float
    budget_us: float | None
    parts_us: dict[str, float]
    alone_us: dict[str, float]
    rest_us: float
    acceptance: tuple[float | None, ...]
    hit_rate: tuple[float | None, ...]
    resident_bytes: tuple[int | None, ...]


def measure_rounds(plan: RoundsPlan, tick: Tick) -> HostRounds:
    """Run ``plan``. ``tick`` is told how many rounds are done."""
    device = HostDevice()
    try:
        timed = _Timed(device, plan)
        timed.run(tick)
    finally:
        device.close()
    parts = _split(plan, HostDevice())
    alone = _split(plan, SeededDevice(eager, check=False))
    del alone["host"]  # there it runs the streams' work, too
    engine_us = timed.busy_us + _pause_us(plan.verify_s)
    host_us = max(0.0, timed.round_us.median - engine_us)
    return HostRounds(
        mode=plan.mode,
        batch=plan.batch,
        round_us=timed.round_us,
        engine_us=engine_us,
        host_us=host_us,
        budget_us=BUDGETS_US.get(plan.batch),
        parts_us=parts,
        alone_us=alone,
        rest_us=host_us - sum(parts.values()),
        acceptance=tuple(share.acceptance_length for share in timed.shares),
        hit_rate=tuple(share.hit_rate for share in timed.shares),
        resident_bytes=tuple(timed.resident),
    )


class _Timed:
    """Rounds with nothing between them but a clock."""

    def __init__(self, device: Device, plan: RoundsPlan) -> None:
        self._plan = plan
        self._pair = _open(device, plan)
        self._texts = SteadyTexts(self._pair.scheduler, plan.batch)
        for _ in range(min(WARM_UP, max(LEAST_WARM_UP, plan.rounds))):
            self._texts.step()

    def run(self, tick: Tick) -> None:
        plan, texts, session = self._plan, self._texts, self._pair.target_session
        marks = np.empty(plan.rounds + 1)
        ends = [plan.rounds * (i + 1) // NUM_STRETCHES for i in range(NUM_STRETCHES)]
        texts.take_share()
        self.shares, self.resident = [], [resident_bytes()]
        busy = session.busy_s
        done, lost = 0, []
        marks[0] = perf_counter()
        for end in ends:
            while done < end:
                texts.step()
                done += 1
                marks[done] = perf_counter()
            lost.append(done)
            self.shares.append(texts.take_share())
            self.resident.append(resident_bytes())
            tick(done, f"{plan.mode}, batch {plan.batch}")
        self.busy_us = (session.busy_s - busy) / plan.rounds * 1e6
        del self.resident[1]  # start, middle, end; like the stretches
        self.round_us = spread(np.delete(np.diff(marks), lost[:-1]) * 1e6)
        texts.stop()


def _split(plan: RoundsPlan, inner: Device) -> dict[str, float]:
    """Median processor time of each part of a round, engines left out, microseconds. Closes
    ``inner``."""
    taken: dict[str, list[float]] = defaultdict(list)

    def on_work(lane: str, label: str, start: float, end: float) -> None:
        taken[f"{lane} {label}"].append(end - start)

    device = TracedDevice(inner, on_work, clock=thread_time)
    try:
        pair = _open(device, plan)
        texts = SteadyTexts(pair.scheduler, plan.batch)
        for _ in range(min(WARM_UP, max(LEAST_WARM_UP, plan.rounds))):
            texts.step()
        taken.clear()
        # Of three or more rounds most are heard of, even if the last one is still under way.
        rounds = max(3, plan.rounds // SPLIT_SHARE)
        busy = pair.target_session.busy_s
        for _ in range(rounds):
            started = thread_time()
            texts.step()
            taken["host"].append(thread_time() - started)
        engine_s = (pair.target_session.busy_s - busy) / rounds
        texts.stop()
    finally:
        device.close()
    parts = {
        label: median(times) * 1e6
        for label, times in sorted(taken.items())
        if len(times) > rounds / 2  # once a round; joining and leaving are rare
    }
    parts["target verify"] = max(0.0, parts["target verify"] - engine_s * 1e6)
    return parts


def _pause_us(pause_s: float) -> float:
    """How long a sleep of that length takes when nobody is in its way."""
    if not pause_s:
        return 0.0
    taken = []
    for _ in range(NUM_PAUSES):
        started = perf_counter()
        sleep(pause_s)
        taken.append(perf_counter() - started)
    return median(taken) * 1e6


def _open(device: Device, plan: RoundsPlan) -> PrescribedPair:
    return PrescribedPair(
        device,
        plan.mode,
        batch=plan.batch,
        num_draft=plan.num_draft,
        num_branches=plan.num_branches,
        verify_s=plan.verify_s,
    )
