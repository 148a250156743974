"""An engine on ONNX Runtime as the runtime runs it, behind polygraphy's runner interface.

What is timed is a bound step: caches in place, no copies. polygraphy's own OnnxrtRunner takes
every cache in and hands every cache out, which adds 3 ms to a step of the default target that
takes 13 (320 rows, one thread; 19 at 1040 rows).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from engines.bundle import Bundle
from engines.errors import UsageError
from engines.manifest import DRAFT, EngineManifest
from export.bench.data_loader import Call
from export.check.runners import usable_cores

MEASURED = "ONNX Runtime, bound steps (caches in place)"


def choose_cores(threads: int | None, role: str) -> tuple[int, ...]:
    """As ``python -m runtime`` places them: all for a target, the last one for a draft."""
    cores = usable_cores()
    if threads is None:
        return cores[-1:] if role == DRAFT else cores
    if not 1 <= threads <= len(cores):
        raise UsageError(f"--threads is {threads}, it must be between 1 and {len(cores)} here")
    return cores[:threads]


class HostEngine:
    """One engine, loaded on a stream of its own. Close it."""

    def __init__(
        self, bundle: Bundle, manifest: EngineManifest, cores: tuple[int, ...], batch: int
    ) -> None:
        from runtime.backends.onnxruntime import OrtSession
        from runtime.device.host import HostDevice

        self.manifest = manifest
        self._device = HostDevice()
        try:
            self._stream = self._device.create_stream(manifest.role, cores=cores)
            self._session = OrtSession(
                bundle.path / manifest.role,
                manifest,
                self._device,
                num_threads=len(cores),
                num_slots=batch,
            )
            self._on_stream(self._session.load)
        except BaseException:
            self._device.close()
            raise

    def runner(self, call: Call) -> Any:
        """A polygraphy runner of the step for ``call``; its feed has no caches."""
        return _runner_class()(self, call)

    def prepare(self, call: Call) -> Any:
        """The bound step, at the rows that ``call`` asks for."""
        from runtime.backends.api import CallShape

        self._session.reset_rows()
        self._session.bind_rows(call.rows)
        return self._session.prepare(CallShape(0, call.batch, call.tokens, call.logits))

    def run(self, step: Any) -> float:
        """Run a step on the engine's stream; seconds inside it."""
        seconds = 0.0

        def timed() -> None:
            nonlocal seconds
            start = time.perf_counter()
            step.run()
            seconds = time.perf_counter() - start

        self._on_stream(timed)
        return seconds

    def close(self) -> None:
        self._device.close()
        self._session.close()

    def _on_stream(self, work: Callable[[], None]) -> None:
        self._stream.launch(work, label=f"bench {self.manifest.role}")
        self._stream.sync()


def _runner_class() -> Any:
    from polygraphy.backend.base import BaseRunner
    from polygraphy.common import TensorMetadata
    from polygraphy.datatype import DataType

    class BoundStepRunner(BaseRunner):  # type: ignore[misc]
        """``infer`` fills in the border's arrays, untimed, and runs the step, timed."""

        def __init__(self, engine: HostEngine, call: Call) -> None:
            super().__init__(prefix="bound-step")
            self._engine = engine
            self._call = call

        def activate_impl(self) -> None:
            self._step = self._engine.prepare(self._call)

        def get_input_metadata_impl(self) -> Any:
            metadata = TensorMetadata()
            for spec in self._engine.manifest.inputs:
                if not spec.name.startswith("kv."):
                    shape = [None if isinstance(dim, str) else dim for dim in spec.shape]
                    metadata.add(spec.name, DataType.from_dtype(spec.dtype.numpy), shape)
            return metadata

        def infer_impl(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            step = self._step
            for name, value in feed.items():
                getattr(step, name)[...] = value[:, 0] if name == "mask" else value
            self.inference_time = self._engine.run(step)
            names = [spec.name for spec in self._engine.manifest.outputs]
            return {name: getattr(step, name) for name in names if not name.startswith("kv.")}

        def deactivate_impl(self) -> None:
            del self._step

    return BoundStepRunner
