"""Sessions of ONNX Runtime's CUDA provider on simulated GPUs, of the tiny bundle."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from engines.manifest import TARGET, EngineManifest
from runtime.backends.onnxruntime_cuda import OrtCudaSession
from runtime.device.cuda import CudaDevice, CudaStream, CudaStreamOptions
from tests.helpers.fake_cuda import EAGER, FakeCuda
from tests.helpers.fake_ort_gpu import FakeOrt
from tests.helpers.tiny_bundle import tiny_bundle


@dataclass
class OrtBench:
    """A simulated GPU, the simulated module, and what is opened on them. Close it."""

    order: Any = EAGER
    sessions: list[OrtCudaSession] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cuda = FakeCuda(self.order, memory_bytes=2**32, with_calls=True)
        self.ort = FakeOrt(self.cuda)
        self._device = CudaDevice(core=self.cuda)

    def device(self) -> CudaDevice:
        return self._device

    def open(self, role: str = TARGET, *, stream: CudaStream, **options: Any) -> OrtCudaSession:
        """A loaded session."""
        manifest = _manifest_of(role)
        made = OrtCudaSession(
            tiny_bundle().path / role,
            manifest,
            self._device,
            stream,
            num_slots=manifest.limits.max_batch,
            module=self.ort,
            **options,
        )
        made.load()
        self.sessions.append(made)
        return made

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self._device.close()


@contextmanager
def opened(
    cuda: FakeCuda, role: str = TARGET, ort: FakeOrt | None = None, **options: Any
) -> Iterator[tuple[OrtCudaSession, CudaDevice, CudaStream, FakeOrt]]:
    """A session that is not loaded, with all it is opened on. Nothing may have been against CUDA's
    rules at the end."""
    ort = ort or FakeOrt(cuda)
    device = CudaDevice(core=cuda, streams={"target": CudaStreamOptions(is_urgent=True)})
    stream = device.create_stream(role)
    session = OrtCudaSession(
        tiny_bundle().path / role,
        _manifest_of(role),
        device,
        stream,
        num_slots=3,
        module=ort,
        **options,
    )
    try:
        yield session, device, stream, ort
    finally:
        session.close()
        device.close()
        assert cuda.misuses == []


def _manifest_of(role: str) -> EngineManifest:
    bundle = tiny_bundle()
    manifest = bundle.target if role == TARGET else bundle.draft
    assert manifest is not None
    return manifest
