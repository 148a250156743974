"""``bench lanes``: the loops, the child process, the hand-overs and the sum made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from engines.errors import DeviceError, SsdError
from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.toy import ToySession
from runtime.bench.figures import Spread
from runtime.bench.hops import pipe_hops, semaphore_hops, thread_hops
from runtime.bench.lane_loops import ROUNDS_A_TEXT, DraftLoop, TargetLoop
from runtime.bench.lane_places import LanePlan, ProcessPlace, ThreadPlace
from runtime.bench.lanes import PROCESS, THREAD, Arrangement, judge
from runtime.device.cores import available_cores
from runtime.device.host import HostDevice
from tests.helpers.tiny_bundle import tiny_bundle
from tests.helpers.toy_pair import tables

LIMITS = Limits(max_len=400, max_batch=1, num_draft=2, max_branches=6)


@pytest.fixture
def device() -> Iterator[HostDevice]:
    opened = HostDevice()
    yield opened
    opened.close()


class StopAfter(Event):
    """An event that is set once it has been asked for so often."""

    def __init__(self, num: int) -> None:
        super().__init__()
        self._left = num

    def is_set(self) -> bool:
        self._left -= 1
        return self._left <= 0


def even(median: float) -> Spread:
    return Spread(1, median, median, median, median)


def test_every_round_of_the_drafts_loop_hits_over_several_texts(device: HostDevice) -> None:
    """The toy session refuses a wrong mask or row; a miss would measure less work."""
    _, table, ids = tables(0, vocab=256, draft_vocab=40)
    session = ToySession(DRAFT, table, LIMITS, device, vocab_map=ids)
    loop = DraftLoop(session, device, 2, 6)
    num = 2 * ROUNDS_A_TEXT + 3
    assert len(loop.rounds_until(StopAfter(num))) == num
    assert loop.hit_rate == 1.0


def test_the_targets_loop_verifies_k_drafts_each_time(device: HostDevice) -> None:
    target, _, _ = tables(0, vocab=256)
    session = ToySession(TARGET, target, LIMITS, device)
    loop = TargetLoop(session, device, 2)
    assert len(loop.rounds(1)) == 1
    prompts = session.num_runs - 1
    num = 2 * ROUNDS_A_TEXT
    assert all(taken > 0 for taken in loop.rounds(num))
    # Two more texts began: their prompts are fed, but not among the rounds.
    assert session.num_runs == 3 * prompts + 1 + num


def test_a_thread_and_a_process_run_the_same_loop() -> None:
    bundle = tiny_bundle()
    plan = LanePlan(bundle.path, available_cores()[-1:], 4, 6)
    for kind in (ThreadPlace, ProcessPlace):
        place = kind(plan)
        try:
            for _ in range(2):
                place.start()
                run = place.stop()
                assert run.taken
                assert all(taken > 0 for taken in run.taken)
                assert run.hit_rate == 1.0
        finally:
            place.close()
        place.close()


def test_what_goes_wrong_in_the_child_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="the draft's process: ") as caught:
        ProcessPlace(LanePlan(tmp_path / "absent", available_cores()[-1:], 2, 6))
    assert "\n" not in str(caught.value)


def test_a_child_that_dies_is_noticed() -> None:
    place = ProcessPlace(LanePlan(tiny_bundle().path, available_cores()[-1:], 4, 6))
    try:
        place._process.kill()
        place._process.join()
        with pytest.raises((SsdError, OSError)):
            place.stop()
    finally:
        place.close()


def test_hops_are_counted_both_ways() -> None:
    cores = available_cores()
    near, far = cores[:1], cores[-1:]
    assert len(thread_hops(near, far, 5)) == 10
    for measure in (pipe_hops, semaphore_hops):
        taken = measure(near, far, 5)
        assert len(taken) == 5
        assert all(seconds > 0 for seconds in taken)


def test_a_process_gains_what_it_contends_less_and_loses_what_its_hops_cost_more() -> None:
    arrangements = {
        THREAD: Arrangement(THREAD, even(10.5), even(5.25), 1.0),
        PROCESS: Arrangement(PROCESS, even(10.4), even(5.0), 1.0),
    }
    hops = {"thread": even(20.0), "pipe": even(60.0), "semaphore": even(35.0)}
    verdict = judge(arrangements, hops)
    assert verdict.contention_us == pytest.approx(100)
    assert verdict.hop_loss_us == pytest.approx(30)
    assert verdict.gain_us == pytest.approx(70)
    assert verdict.gain_share == pytest.approx(0.070 / 10.5)
    assert verdict.busy_share == pytest.approx(0.5)
