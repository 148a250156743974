"""Runs the three arrangements of ``bench lanes`` in turns, then the hand-overs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from engines.bundle import Bundle, open_bundle
from engines.compat import require
from engines.errors import UsageError
from engines.manifest import TARGET
from runtime.backends.onnxruntime import OrtSession
from runtime.bench.figures import spread
from runtime.bench.hops import pipe_hops, semaphore_hops, thread_hops
from runtime.bench.kind import Tick
from runtime.bench.lane_loops import TargetLoop
from runtime.bench.lane_places import DraftPlace, LanePlan, ProcessPlace, ThreadPlace
from runtime.bench.lanes import (
    ALONE,
    ARRANGEMENTS,
    PROCESS,
    THREAD,
    Arrangement,
    LaneFigures,
    judge,
)
from runtime.device.cores import available_cores, cpu_quota
from runtime.device.host import HostDevice
from runtime.loader import BACKEND, on_stream
from runtime.placement import Placement, place

WARM_UP = 3
"""Verifications at the start of a turn that do not count."""
WAYS = {"thread": thread_hops, "pipe": pipe_hops, "semaphore": semaphore_hops}


def measure_lanes(
    path: Path,
    *,
    num_draft: int | None,
    num_branches: int | None,
    segments: int,
    rounds: int,
    hops: int,
    tick: Tick,
) -> LaneFigures:
    """Raises BundleError, CapacityError, or UsageError where two cores or a draft are missing."""
    bundle = open_bundle(path)
    require(bundle, backend=BACKEND, num_draft=num_draft, branches=num_branches)
    limits = bundle.manifest.limits
    depth, width = num_draft or limits.num_draft, num_branches or limits.max_branches
    placement = place("ssd", available_cores(), cpu_quota(), has_draft=bundle.draft is not None)
    if placement.mode != "ssd" or min(depth, width) < 1:
        raise UsageError(
            "bench lanes needs two cores, and a bundle built for at least one drafted token and "
            "one branch"
        )
    plan = LanePlan(path.resolve(), placement.draft_cores, depth, width)
    turns = _Turns(bundle, placement, plan, rounds)
    try:
        for number in range(segments):
            turns.take(number)
            tick(number + 1, "turns")
    finally:
        turns.close()
    found = {name: turns.figures(name) for name in ARRANGEMENTS}
    ways = {}
    for done, (name, measure) in enumerate(WAYS.items(), start=segments + 1):
        taken = measure(placement.target_cores, placement.draft_cores, hops)
        ways[name] = spread([seconds * 1e6 for seconds in taken])
        tick(done, f"{name} hops")
    return LaneFigures(
        num_draft=depth,
        num_branches=width,
        target_cores=placement.target_cores,
        draft_cores=placement.draft_cores,
        arrangements=tuple(found.values()),
        hops_us=ways,
        verdict=judge(found, ways),
        child_bytes=turns.child_bytes,
    )


class _Turns:
    """The target on its stream, the draft in both places, and what they took so far."""

    def __init__(self, bundle: Bundle, placement: Placement, plan: LanePlan, rounds: int) -> None:
        self._rounds = rounds
        self._verify_ms: dict[str, list[float]] = {name: [] for name in ARRANGEMENTS}
        self._draft_ms: dict[str, list[float]] = {name: [] for name in ARRANGEMENTS}
        self._hit_rate: dict[str, float] = {}
        self.child_bytes: int | None = None
        with ExitStack() as opened:
            device = HostDevice("target")
            opened.callback(device.close)
            self._stream = device.create_stream("target", cores=placement.target_cores)
            session = OrtSession(
                bundle.path / TARGET,
                bundle.target,
                device,
                num_threads=len(placement.target_cores),
                num_slots=1,
            )
            on_stream(self._stream, session.load, "load target")
            self._loop = TargetLoop(session, device, plan.num_draft)
            self._places: dict[str, DraftPlace | None] = {ALONE: None}
            for name, kind in ((THREAD, ThreadPlace), (PROCESS, ProcessPlace)):
                there: DraftPlace = kind(plan)
                opened.callback(there.close)
                self._places[name] = there
            self._opened = opened.pop_all()

    def take(self, number: int) -> None:
        """One turn each; who is first changes from turn to turn."""
        first = number % len(ARRANGEMENTS)
        for name in (*ARRANGEMENTS[first:], *ARRANGEMENTS[:first]):
            draft = self._places[name]
            taken: list[float] = []
            if draft is not None:
                draft.start()

            def run(into: list[float] = taken) -> None:
                into.extend(self._loop.rounds(WARM_UP + self._rounds))

            on_stream(self._stream, run, "verify")
            self._verify_ms[name] += [seconds * 1e3 for seconds in taken[WARM_UP:]]
            if draft is not None:
                lane = draft.stop()
                self._draft_ms[name] += [seconds * 1e3 for seconds in lane.taken[1:] or lane.taken]
                self._hit_rate[name] = lane.hit_rate
                if name == PROCESS:
                    self.child_bytes = lane.resident_bytes

    def figures(self, name: str) -> Arrangement:
        """All turns of one arrangement."""
        drafted = self._draft_ms[name]
        return Arrangement(
            name,
            spread(self._verify_ms[name]),
            spread(drafted) if drafted else None,
            self._hit_rate.get(name),
        )

    def close(self) -> None:
        """Free engines, threads and the process; idempotent."""
        self._opened.close()
