"""The draft's loop in a thread of this process, as the runtime has it, and in one of its own."""

from __future__ import annotations

import multiprocessing
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from typing import Protocol

from engines.bundle import Bundle, open_bundle
from engines.errors import DeviceError, SsdError, as_line
from engines.manifest import DRAFT
from runtime.backends.onnxruntime import OrtSession
from runtime.bench.figures import resident_bytes
from runtime.bench.lane_loops import DraftLoop
from runtime.device.host import HostDevice

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
READY = "ready"


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What a draft's loop needs to know, in a form that travels to another process."""

    bundle: Path
    cores: tuple[int, ...]
    num_draft: int
    num_branches: int


@dataclass(frozen=True, slots=True)
class LaneRun:
    """Seconds of each of the draft's rounds, the share of them that hit, and the memory of the
    process they ran in (None where the system does not tell)."""

    taken: list[float]
    hit_rate: float
    resident_bytes: int | None


class DraftPlace(Protocol):
    """Where the draft's loop runs: between ``start`` and ``stop`` round after round."""

    def start(self) -> None:
        """Begin; returns at once."""

    def stop(self) -> LaneRun:
        """Let the round end that is on its way, and wait for it."""

    def close(self) -> None:
        """Free it all; idempotent."""


class ThreadPlace:
    """The loop on a stream of its own device in this process."""

    def __init__(self, plan: LanePlan) -> None:
        self._device = HostDevice("draft")
        try:
            bundle = open_bundle(plan.bundle)
            self._stream = self._device.create_stream("draft", cores=plan.cores)
            self._session = _draft_session(bundle, self._device)
            self._stream.launch(self._session.load, label="load draft")
            self._stream.sync()
            self._loop = DraftLoop(self._session, self._device, plan.num_draft, plan.num_branches)
        except BaseException:
            self._device.close()
            raise
        self._stop = Event()
        self._taken: list[float] = []

    def start(self) -> None:
        self._stop.clear()
        self._taken = []
        self._stream.launch(
            lambda: self._taken.extend(self._loop.rounds_until(self._stop)), label="draft rounds"
        )

    def stop(self) -> LaneRun:
        self._stop.set()
        self._stream.sync()
        return LaneRun(self._taken, self._loop.hit_rate, resident_bytes())

    def close(self) -> None:
        self._stop.set()
        self._device.close()
        self._session.close()


class ProcessPlace:
    """The same in a child process, which sleeps while it is stopped."""

    def __init__(self, plan: LanePlan) -> None:
        """Raises what opening the draft raised there, or DeviceError where the child ended."""
        context = multiprocessing.get_context("spawn")
        self._near, far = context.Pipe()
        self._process = context.Process(target=_serve, args=(plan, far), daemon=True)
        try:
            self._process.start()
            far.close()
            self._receive(START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        self._near.send("start")

    def stop(self) -> LaneRun:
        self._near.send("stop")
        found = self._receive(STOP_TIMEOUT_S)
        assert isinstance(found, LaneRun)
        return found

    def close(self) -> None:
        self._near.close()
        if self._process.pid is not None:
            self._process.join(STOP_TIMEOUT_S)
            if self._process.is_alive():
                self._process.terminate()
                self._process.join()

    def _receive(self, timeout_s: float) -> object:
        try:
            found = self._near.recv() if self._near.poll(timeout_s) else None
        except (EOFError, OSError):
            raise DeviceError(
                "the draft's process ended early; what it wrote to stderr says why"
            ) from None
        if found is None:
            raise DeviceError(f"the draft's process gave no answer within {timeout_s:g} s")
        if isinstance(found, str) and found != READY:
            raise DeviceError(f"the draft's process: {found}")
        return found


def _serve(plan: LanePlan, orders: Connection) -> None:
    """The child: ready, then start and stop until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and closes the pipe
    try:
        place = ThreadPlace(plan)
    except SsdError as error:
        orders.send(as_line(str(error)))
        return
    try:
        orders.send(READY)
        while True:
            order = orders.recv()
            if order == "start":
                place.start()
            else:
                orders.send(place.stop())
    except (EOFError, OSError):  # the parent is gone or done
        pass
    except SsdError as error:
        orders.send(as_line(str(error)))
    finally:
        place.close()


def _draft_session(bundle: Bundle, device: HostDevice) -> OrtSession:
    draft = bundle.draft
    assert draft is not None
    return OrtSession(bundle.path / DRAFT, draft, device, num_threads=1, num_slots=1)
