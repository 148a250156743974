"""What only the device with threads can show: threads, cores, signals, process exit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engines.errors import DeviceError
from runtime.device.cores import available_cores
from runtime.device.host import HostDevice
from runtime.device.order import OrderError
from runtime.device.queued import QueuedEvent
from tests.helpers.latch import Latch

needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system cannot pin threads"
)


@pytest.fixture
def device() -> Iterator[HostDevice]:
    opened = HostDevice()
    yield opened
    opened.close()


def stream_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("stream ")}


def test_each_stream_has_its_own_thread_until_it_closes(device: HostDevice) -> None:
    idents: list[int] = []
    a, b = device.create_stream("own a"), device.create_stream("own b")
    for stream in (a, b, a):
        stream.launch(lambda: idents.append(threading.get_ident()))
        stream.sync()
    assert idents[0] == idents[2]
    assert len({*idents, threading.get_ident()}) == 3
    assert {"stream own a", "stream own b"} <= stream_threads()
    device.close()
    assert not {"stream own a", "stream own b"} & stream_threads()


def test_two_streams_run_at_the_same_time(device: HostDevice) -> None:
    """Each work waits for the other to have begun: one after the other would never end."""
    meeting = threading.Barrier(2, timeout=30.0)
    a, b = device.create_stream("a"), device.create_stream("b")
    a.launch(lambda: [meeting.wait()].clear())
    b.launch(lambda: [meeting.wait()].clear())
    a.sync()
    b.sync()


@needs_affinity
def test_work_runs_on_the_cores_of_its_stream(device: HostDevice) -> None:
    core = available_cores()[-1]
    pinned = device.create_stream("pinned", cores=[core])
    free = device.create_stream("free")
    seen: list[set[int]] = []
    for stream in (pinned, free):
        stream.launch(lambda: seen.append(os.sched_getaffinity(0)))
        stream.sync()
    assert seen == [{core}, os.sched_getaffinity(0)]


@pytest.mark.parametrize("cores", [[], [max(available_cores()) + 1], [available_cores()[0], 4096]])
def test_cores_outside_the_affinity_are_refused(device: HostDevice, cores: list[int]) -> None:
    """The message names what is allowed; no thread and no name stays behind."""
    with pytest.raises(DeviceError, match="this process may run on") as info:
        device.create_stream("outside", cores=cores)
    assert str(list(available_cores())) in str(info.value)
    assert "stream outside" not in stream_threads()
    device.create_stream("outside")


def test_ctrl_c_interrupts_a_blocked_sync(device: HostDevice) -> None:
    """The stream is held, so only the signal can end the sync; afterwards all still works."""
    a = device.create_stream("a")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with Latch(device, a) as latch:
            latch.wait_until_reached()
            for sync in (a.sync, a.record().sync):
                signal.setitimer(signal.ITIMER_REAL, 0.02)
                with pytest.raises(KeyboardInterrupt):
                    sync()
        a.sync()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_closing_drops_queued_work_and_gives_up_on_work_that_never_ends() -> None:
    device, log = HostDevice(close_timeout_s=0.01), list[int]()
    a, b = device.create_stream("stuck"), device.create_stream("idle")
    with Latch(device, a) as latch:
        latch.wait_until_reached()
        a.launch(lambda: log.append(1))
        event = a.record()
        with pytest.raises(DeviceError, match="'stuck' is still in the middle of its work"):
            device.close()
        device.close()
        with pytest.raises(DeviceError, match="closed"):
            b.sync()
    with pytest.raises(DeviceError, match="'stuck' was closed before it reached"):
        event.sync()
    assert log == []


def test_close_waits_for_work_that_has_begun() -> None:
    device, log = HostDevice(), list[str]()
    a = device.create_stream("a")
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(30.0)
        log.append("done")

    a.launch(work)
    assert begun.wait(30.0)
    timer = threading.Timer(0.02, go_on.set)
    timer.start()
    device.close()
    assert log == ["done"]
    timer.join()


def test_an_idle_stream_keeps_no_work_alive(device: HostDevice) -> None:
    """A closure can hold whole KV caches; the thread must let go of it once it has run."""

    class Work:
        def __call__(self) -> None:
            pass

    work = Work()
    alive = weakref.ref(work)
    device.create_stream("a").launch(work)
    del work
    for _ in range(1_000):
        if alive() is None:
            return
        time.sleep(0.01)
    pytest.fail("the idle thread still holds the work")


def test_close_wakes_a_stream_that_sleeps_at_a_wait(device: HostDevice) -> None:
    a, b = device.create_stream("a"), device.create_stream("b")
    arrived = threading.Event()
    with Latch(device, a):
        b.launch(arrived.set)
        b.wait(a.record())
        assert arrived.wait(30.0)
        time.sleep(0.01)  # long enough, nearly always, for b to fall asleep at its wait
        b.close()


def test_the_host_is_woken_though_the_stream_waits_for_another_behind_the_mark(
    device: HostDevice,
) -> None:
    """The host comes last, but the other stream may never come, and must not keep it waiting."""
    a, b = device.create_stream("a"), device.create_stream("b")
    with Latch(device, b), Latch(device, a) as begins:
        never = b.record()
        mark = a.record()
        a.wait(never)
        woken = _wait_in_a_thread(mark)
        begins.release()
        assert woken.wait(30.0)
        assert not never.is_done


@pytest.mark.parametrize("behind", ["nothing", "work", "a mark", "a wait that is over"])
def test_the_host_is_woken_whatever_follows_the_mark(device: HostDevice, behind: str) -> None:
    """It slept on where a step behind the mark forgot it."""
    a, b = device.create_stream("a"), device.create_stream("b")
    over = b.record()
    b.sync()
    with Latch(device, a):
        mark = a.record()
        if behind == "work":
            a.launch(lambda: None)
        elif behind == "a mark":
            a.record()
        elif behind == "a wait that is over":
            a.wait(over)
        woken = _wait_in_a_thread(mark)
    assert woken.wait(30.0)


def _wait_in_a_thread(event: QueuedEvent) -> threading.Event:
    """Begin ``event.sync``; set once it has returned."""
    woken = threading.Event()
    threading.Thread(target=lambda: [event.sync(), woken.set()].clear(), daemon=True).start()
    assert event.mark is not None
    while not event.mark.late_bells:
        woken.wait(0.001)
    return woken


def test_the_checker_works_with_threads_and_refuses_before_running() -> None:
    device, log = HostDevice(check=True), list[str]()
    a, b = device.create_stream("a"), device.create_stream("b")
    x = device.allocate("x", (4,), np.int8)
    a.launch(lambda: log.append("a"), writes=[x], label="fill")
    with pytest.raises(OrderError, match="'fill' on stream 'a'"):
        b.launch(lambda: log.append("b"), reads=[x], label="use")
    b.wait(a.record())
    b.launch(lambda: log.append("b"), reads=[x], label="use")
    b.sync()
    device.close()
    assert log == ["a", "b"]


EXIT_WHILE_HELD = """
import threading
from runtime.device.host import HostDevice
device = HostDevice()
begun = threading.Event()
stream = device.create_stream("a")
device.create_stream("idle")
def work():
    begun.set()
    threading.Event().wait()
stream.launch(work)
begun.wait()
print("leaving", flush=True)
"""

EXIT_DURING_A_CALL = """
import threading, time
from runtime.device.host import HostDevice
device = HostDevice()
begun = threading.Event()
stream = device.create_stream("a")
def work():
    begun.set()
    time.sleep(0.05)
    print("finished", flush=True)
stream.launch(work)
begun.wait()
"""


@pytest.mark.parametrize(
    ("program", "output"), [(EXIT_WHILE_HELD, "leaving"), (EXIT_DURING_A_CALL, "finished")]
)
def test_python_exits_with_streams_still_open(program: str, output: str) -> None:
    """Blocked work must not keep the interpreter alive; a call in progress is let finish."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, output, "")
