"""What one hand-over costs: from a stream to another one, and from a process to another one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Protocol

import numpy as np

from engines.errors import DeviceError
from runtime.device.api import Stream
from runtime.device.host import HostDevice

MESSAGE_CELLS = 8
"""Integers of a proposal or an outcome, about."""
TIMEOUT_S = 60.0


class _Signal(Protocol):
    def acquire(self, block: bool = ..., timeout: float | None = ...) -> bool: ...

    def release(self) -> None: ...


def thread_hops(near: Sequence[int], far: Sequence[int], num: int) -> list[float]:
    """Seconds of ``num`` hops each way between two pinned streams, by record and wait."""
    device = HostDevice("hops")
    try:
        first = device.create_stream("first", cores=near)
        second = device.create_stream("second", cores=far)
        marks: list[float] = []

        def stamp() -> None:
            marks.append(perf_counter())

        def hop(source: Stream, sink: Stream) -> None:
            source.launch(stamp, label="stamp")
            sink.wait(source.record())

        for _ in range(num):
            hop(first, second)
            hop(second, first)
        first.launch(stamp, label="stamp")
        first.sync()
    finally:
        device.close()
    return np.diff(marks).tolist()


def pipe_hops(near: Sequence[int], far: Sequence[int], num: int) -> list[float]:
    """Seconds of ``num`` hops to another process through a pipe: half of each round trip."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_echo, args=(theirs, tuple(far)), daemon=True)
    process.start()
    theirs.close()
    message = bytes(8 * MESSAGE_CELLS)

    def trip() -> None:
        ours.send_bytes(message)
        ours.recv_bytes()

    try:
        return _half_trips(trip, near, num)
    except (EOFError, OSError):
        raise DeviceError("the other process of a hop ended early") from None
    finally:
        ours.close()
        process.join(TIMEOUT_S)


def semaphore_hops(near: Sequence[int], far: Sequence[int], num: int) -> list[float]:
    """The same through shared memory and two semaphores."""
    context = multiprocessing.get_context("spawn")
    there, back = context.Semaphore(0), context.Semaphore(0)
    cells = context.RawArray("q", MESSAGE_CELLS)
    process = context.Process(
        target=_answer, args=(there, back, cells, num + 1, tuple(far)), daemon=True
    )
    process.start()
    ours = np.frombuffer(cells, np.int64)

    def trip() -> None:
        ours[:] += 1
        there.release()
        if not back.acquire(timeout=TIMEOUT_S):
            raise DeviceError("the other process of a hop ended early")

    try:
        return _half_trips(trip, near, num)
    finally:
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.terminate()
            process.join()


def _half_trips(trip: Callable[[], None], near: Sequence[int], num: int) -> list[float]:
    """Run on a pinned stream, as the target would. The first trip waits for the child's start."""
    taken: list[float] = []

    def run() -> None:
        trip()
        for _ in range(num):
            started = perf_counter()
            trip()
            taken.append((perf_counter() - started) / 2)

    device = HostDevice("hops")
    try:
        stream = device.create_stream("near", cores=near)
        stream.launch(run, label="hops")
        stream.sync()
    finally:
        device.close()
    return taken


def _echo(pipe: Connection, cores: tuple[int, ...]) -> None:
    _settle(cores)
    try:
        while True:
            pipe.send_bytes(pipe.recv_bytes())
    except (EOFError, OSError):  # the parent has what it wanted
        pass


def _answer(
    there: _Signal,
    back: _Signal,
    cells: ctypes.Array[ctypes.c_longlong],
    num: int,
    cores: tuple[int, ...],
) -> None:
    _settle(cores)
    theirs = np.frombuffer(memoryview(cells), np.int64)
    for _ in range(num):
        if not there.acquire(timeout=TIMEOUT_S):
            return
        theirs[:] += 1
        back.release()


def _settle(cores: tuple[int, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and ends this process
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(cores))
