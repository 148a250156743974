"""Sessions of the simulated TensorRT over toy engines."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from engines.manifest import TARGET, EngineManifest, Limits
from plugins.layer import DeviceTensor, Launcher
from runtime.backends.api import CallShape
from runtime.backends.tensorrt.session import TensorRtSession
from runtime.backends.tensorrt.step import TensorRtStep
from runtime.backends.tensorrt.vendor import Vendor
from runtime.device.cuda import CudaDevice, CudaStream
from tests.helpers.fake_cuda import EAGER, FakeCuda
from tests.helpers.fake_tensorrt_module import FakeTensorRt
from tests.helpers.fake_tensorrt_toy import Edit, SimulatedLauncher, array_at, write_toy_plan
from tests.helpers.toy_pair import tables

LIMITS = Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6)
T = TypeVar("T")


@dataclass
class Bench:
    """A simulated GPU with a simulated TensorRT, and what is opened on them. Close it."""

    folder: Path
    module: str = "tensorrt"
    order: Any = EAGER
    limits: Limits = LIMITS
    num_gpus: int = 1
    check: bool = False
    edit: Edit = lambda _plan: None
    capabilities: tuple[str, ...] = ("9.0",)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cuda = FakeCuda(self.order, num_gpus=self.num_gpus, with_calls=True)
        self.trt = FakeTensorRt(
            self.cuda, self.module, "11.4.0.106" if self.module == "tensorrt" else "1.7.1.116"
        )
        self.vendor = Vendor.of(self.trt)
        self.devices: dict[int, CudaDevice] = {}
        self.sessions: list[TensorRtSession] = []

    def device(self, ordinal: int = 0) -> CudaDevice:
        if ordinal not in self.devices:
            self.devices[ordinal] = CudaDevice(ordinal, core=self.cuda, check=self.check)
        return self.devices[ordinal]

    def manifest(self, role: str = TARGET, seed: int = 1) -> EngineManifest:
        """Write the engine's folder, anew each time."""
        target, draft, ids = tables(seed, draft_vocab=7)
        is_target = role == TARGET
        return write_toy_plan(
            self.folder / role,
            role,
            target if is_target else draft,
            self.limits,
            builder=self.trt.builder,
            vocab_map=None if is_target else ids,
            capabilities=self.capabilities,
            edit=self.edit,
        )

    def session(
        self,
        role: str = TARGET,
        *,
        manifest: EngineManifest | None = None,
        gpu: int = 0,
        num_slots: int = 3,
        num_copies: int | None = None,
        launcher: Callable[[str], Launcher] | None = None,
        stream: CudaStream | None = None,
    ) -> TensorRtSession:
        """A session that is not loaded, on a stream of its own."""
        made = TensorRtSession(
            self.folder / role,
            manifest or self.manifest(role),
            self.device(gpu),
            stream or self.device(gpu).create_stream(f"{role} {len(self.sessions)}"),
            vendor=self.vendor,
            num_slots=num_slots,
            num_copies=num_copies,
            launcher=launcher or (lambda _capability: SimulatedLauncher(self.cuda)),
            note=self.notes.append,
        )
        self.sessions.append(made)
        return made

    def open(self, role: str = TARGET, **options: Any) -> TensorRtSession:
        """A loaded session."""
        made = self.session(role, **options)
        made.load()
        return made

    def close(self) -> None:
        # Errors that were raised hold the frames, and so the contexts, that they came from.
        gc.collect()
        for session in self.sessions:
            session.close()
        for device in self.devices.values():
            device.close()


class OnStream:
    """A session whose methods are called in work of a stream, one after the other."""

    def __init__(self, session: Any, stream: CudaStream) -> None:
        self._session = session
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._session, name)
        if not callable(value):
            return value
        return lambda *arguments: _wrapped(
            self._stream.call(lambda: value(*arguments)), self._stream
        )


class StepOnStream:
    """A blocking step whose ``run`` is called in work of a stream."""

    def __init__(self, step: Any, stream: CudaStream) -> None:
        self.__dict__ |= {"_step": step, "_stream": stream}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def run(self) -> None:
        self._stream.call(self._step.run)


def _wrapped(value: Any, stream: CudaStream) -> Any:
    return StepOnStream(value, stream) if hasattr(value, "run") else value


def stream_of(session: TensorRtSession) -> CudaStream:
    return session._stream


def view(tensor: DeviceTensor) -> np.ndarray:
    """The tensor's memory: the GPU is simulated, so the host sees it."""
    return array_at(tensor.address, tensor.shape, tensor.dtype.numpy)


def feed(session: TensorRtSession, tokens: Sequence[int], *, slot: int = 0) -> TensorRtStep:
    """Prepare a call that begins a text in a slot, and fill it; in work."""
    width, scratch = len(tokens), session.manifest.kv.scratch_rows
    step = session.prepare(CallShape(slot, 1, width, 1))
    view(step.tokens)[0] = tokens
    view(step.positions)[0] = range(width)
    view(step.write_at)[0] = scratch
    view(step.logit_rows)[0] = width - 1
    view(step.num_draft)[0] = 0
    mask = np.zeros((width, session.num_rows), bool)
    mask[:, scratch : scratch + width] = np.tri(width, dtype=bool)
    view(step.mask)[0, 0] = mask
    return step
