"""Engines compiled by TensorRT or TensorRT-RTX, on a GPU.

    load     host thread; what TensorRT does happens on the stream's own thread, whose GPU is set
    prepare  a context for the call: profile, shapes and addresses are set once
    enqueue  one call of TensorRT; nothing is allocated, set or waited for
    close    contexts, config, engine and runtime go in that order, once the GPU is idle

A context a call, since a CUDA graph holds on to the state of the context it was captured from;
all of them compute in one memory, for they run on one stream. Calls of a prompt, which come in many
shapes and begin at every slot, share one context instead, are bound when they differ from the
call before, and are not captured. TensorRT-RTX captures graphs by itself, so nothing of it is.

Caches have all their rows from the start, as compiled. What grows is how many a call attends, in
fewer steps than on a CPU: a row more costs a GPU next to nothing, a shape more a context, kernels
and a graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from engines.errors import BackendError, CapacityError, DeviceError, UsageError
from engines.manifest import EngineManifest, PlanFacts
from engines.profiles import pick_bucket
from plugins import launcher as kernels
from plugins.layer import DeviceTensor, Launcher
from runtime.backends.api import CallShape
from runtime.backends.device_blocks import DeviceBlocks, default_copies
from runtime.backends.device_caches import DeviceCaches
from runtime.backends.tensorrt import layers
from runtime.backends.tensorrt.binding import ALIGNMENT, bind, pick_profile
from runtime.backends.tensorrt.engine import Gpu, LoadedEngine, require_contiguous_slots
from runtime.backends.tensorrt.memory import EngineMemory, planned
from runtime.backends.tensorrt.plan_file import facts_of
from runtime.backends.tensorrt.runtime_cache import Note
from runtime.backends.tensorrt.step import BoundContext, TensorRtStep
from runtime.backends.tensorrt.vendor import Vendor
from runtime.backends.vocab_map import load_vocab_map
from runtime.device.api import Buffer
from runtime.device.cuda import CudaDevice, CudaStream, current_stream
from runtime.device.cuda_errors import cuda_call

FEWEST_ROWS = 512
PROMPT = "prompt"


def attended_lengths(lengths: Sequence[int]) -> tuple[int, ...]:
    """Those of a manifest's row buckets that calls attend: about 512, then twice as many each."""
    kept: list[int] = []
    for length in lengths:
        if length == lengths[-1] or length >= (2 * kept[-1] if kept else FEWEST_ROWS):
            kept.append(length)
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What ``load`` makes: the engine, the kernels of its layers, and the memory it works in."""

    plan: PlanFacts
    engine: LoadedEngine
    launcher: Launcher
    caches: DeviceCaches
    blocks: DeviceBlocks
    activations: Buffer


class TensorRtSession:
    """See ``runtime.backends.api.DeviceSession``.

    It may go on on another stream of its device when its own is given up; steps are enqueued by
    one stream at a time.
    """

    def __init__(
        self,
        folder: Path,
        manifest: EngineManifest,
        device: CudaDevice,
        stream: CudaStream,
        *,
        vendor: Vendor,
        num_slots: int,
        num_copies: int | None = None,
        launcher: Callable[[str], Launcher] = kernels.load,
        note: Note = lambda _note: None,
    ) -> None:
        """``folder`` holds the plan. ``num_copies`` outputs are kept side by side (default: one of
        a target, K + 1 of a draft). ``launcher`` loads the kernels of our layers for a compute
        capability, on the stream's thread. ``note`` is told what the user may want to know.
        """
        self.manifest = manifest
        self.vocab_map: np.ndarray | None = load_vocab_map(folder, manifest)
        self.is_capturable = not vendor.is_rtx
        self._vendor = vendor
        self._folder = folder
        self._device = device
        self._stream = stream
        self._num_slots = num_slots
        self._num_copies = default_copies(manifest) if num_copies is None else num_copies
        self._load_kernels = launcher
        self._note = note
        self._lengths = attended_lengths(manifest.lengths)
        self._num_rows = self._lengths[0]
        self._steps: dict[tuple[CallShape, int], TensorRtStep] = {}
        self._prompt: BoundContext | None = None
        self._is_tainted = False
        self._loaded: _Loaded | None = None

    def load(self) -> None:
        """Read the engine and allocate all memory. By the host thread.

        Raises BundleCorruptError, BundleIncompatibleError, BackendError and DeviceError.
        """
        manifest = self.manifest
        most = manifest.limits.max_batch
        if not 1 <= self._num_slots <= most:
            raise UsageError(
                f"{self._num_slots} texts at once, the engine was built for 1 to {most}; build it "
                "again with a larger --max-batch"
            )
        require_contiguous_slots(manifest, self._num_slots, ALIGNMENT)
        plan = facts_of(manifest, self._folder)
        gpu = Gpu(self._device.gpu_name, self._device.capability)
        launcher = self._stream.call(partial(self._load_kernels, gpu.capability))
        engine = self._stream.call(
            partial(LoadedEngine, self._vendor, self._folder, manifest, gpu, self._note)
        )
        try:
            self._loaded = _Loaded(
                plan=plan,
                engine=engine,
                launcher=launcher,
                caches=DeviceCaches(self._device, manifest, self._num_slots, is_static=True),
                blocks=DeviceBlocks(self._device, manifest, self._num_slots, self._num_copies),
                activations=self._device.allocate(
                    f"{manifest.role} activations", (engine.activation_bytes,), "u1"
                ),
            )
        except BaseException:
            self._device.when_idle(engine.release)
            raise

    @property
    def memory(self) -> EngineMemory:
        """What the loaded session holds, as the engine says it."""
        loaded = self._open
        plan = planned(self.manifest, num_slots=self._num_slots, num_copies=self._num_copies)
        return replace(
            plan,
            weights=loaded.engine.weight_bytes,
            activations=loaded.engine.activation_bytes,
            caches=loaded.caches.buffer.nbytes,
        )

    @property
    def kv_buffer(self) -> Buffer:
        return self._open.caches.buffer

    @property
    def num_rows(self) -> int:
        return self._num_rows

    @property
    def caches(self) -> tuple[DeviceTensor, ...]:
        return self._open.caches.tensors()

    def bind_rows(self, needed: int) -> None:
        if needed <= self._num_rows:
            return
        try:
            self._num_rows = pick_bucket(self._lengths, needed)
        except ValueError as error:
            raise CapacityError(f"{error}; rebuild with a larger --max-len") from None

    def reset_rows(self) -> None:
        self._num_rows = self._lengths[0]
        if self._is_tainted:
            self._zero_caches()
            self._is_tainted = False

    def prepare(self, shape: CallShape) -> TensorRtStep:
        """See ``DeviceSession``. A step is good for the session's life, whatever rows are bound.

        Raises CapacityError for a call that no profile holds, BackendError.
        """
        step = self._steps.get((shape, self._num_rows))
        if step is None:
            step = self._steps[shape, self._num_rows] = self._make_step(shape)
        return step

    def warm_up(self, shapes: Sequence[CallShape]) -> None:
        """Run a call of each shape at the rows bound now, so that no text has to wait for what a
        first run does; the caches are zeroed afterwards. In work, before any text lives."""
        for shape in shapes:
            step = self.prepare(shape)
            self._fill(step.mask, 1)  # a query that attends nothing is not defined
            for tensor in (step.tokens, step.positions, step.write_at, step.logit_rows):
                self._fill(tensor, 0)
            self._fill(step.num_draft, 0)
            step.enqueue()
        self._zero_caches()

    def run(self, step: TensorRtStep) -> None:
        """Enqueue a step; see ``DeviceStep.enqueue``."""
        loaded, bound = self._open, step.bound
        stream = int(current_stream().handle)
        if (step.is_shared or not step.is_warm) and self._device.core.is_capturing(stream):
            raise BackendError(
                f"the call {step} of the {self.manifest.role} engine cannot be captured: "
                + ("calls of a prompt share a context" if step.is_shared else "it was never run")
                + "; run it without a capture first"
            )
        if bound.step is not step:
            self._bind(loaded, step, stream)
        loaded.engine.faults.forget()
        try:
            with layers.running(loaded.launcher):
                is_queued = bound.context.execute_async_v3(stream)
        except Exception as error:  # the binding, about an argument
            raise self._failed(loaded, step, error) from error
        if not is_queued:
            raise self._failed(loaded, step)
        step.is_warm = True

    def copy_slot(self, source: int, destination: int, rows: slice) -> None:
        self._open.caches.copy_slot(source, destination, rows)

    def close(self) -> None:
        """Let go of the engine once the GPU is idle, without waiting for that; idempotent.

        By the host thread, before the device is closed, and when no graph is left that was
        captured from a step.
        """
        loaded, self._loaded = self._loaded, None
        self._steps.clear()
        self._prompt = None
        if loaded is None:
            return
        try:
            self._device.when_idle(loaded.engine.release)
        except DeviceError:  # the device was closed, and with it all that ran on it
            loaded.engine.release()

    @property
    def _open(self) -> _Loaded:
        if self._loaded is None:
            raise BackendError(
                f"the {self.manifest.role} engine is not loaded, or was closed; open the bundle "
                "again"
            )
        return self._loaded

    def _make_step(self, shape: CallShape) -> TensorRtStep:
        loaded = self._open
        stream = int(current_stream().handle)
        if shape.first_slot + shape.num_slots > self._num_slots:
            raise CapacityError(
                f"a call of slots {shape.first_slot} to {shape.first_slot + shape.num_slots - 1}, "
                f"the session was loaded with {self._num_slots}"
            )
        profile = pick_profile(self.manifest, loaded.plan, shape, self._num_rows)
        tensors = loaded.blocks.tensors(shape, self._num_rows)
        is_shared = loaded.plan.profiles[profile].name == PROMPT
        bound = self._prompt if is_shared else None
        if bound is None:
            bound = loaded.engine.create_context(loaded.activations.address)
            self._prompt = bound if is_shared else self._prompt
        outputs = {spec.name for spec in self.manifest.outputs}
        step = TensorRtStep(
            shape=shape,
            num_rows=self._num_rows,
            profile=profile,
            is_shared=is_shared,
            tokens=tensors["tokens"],
            positions=tensors["positions"],
            write_at=tensors["write_at"],
            mask=tensors["mask"],
            logit_rows=tensors["logit_rows"],
            num_draft=tensors["num_draft"],
            logits=tensors["logits"],
            outputs={name: tensor for name, tensor in tensors.items() if name in outputs},
            bound=bound,
            _session=self,
        )
        self._bind(loaded, step, stream)
        return step

    def _bind(self, loaded: _Loaded, step: TensorRtStep, stream: int) -> None:
        bind(step, self.manifest, loaded.caches, loaded.engine.faults, stream)

    def _failed(
        self, loaded: _Loaded, step: TensorRtStep, error: Exception | None = None
    ) -> BackendError:
        self._is_tainted = True
        return loaded.engine.faults.make(f"execute_async_v3 ({step})", error=error)

    def _zero_caches(self) -> None:
        buffer = self.kv_buffer
        self._fill_bytes(buffer.address, 0, buffer.nbytes)

    def _fill(self, tensor: DeviceTensor, value: int) -> None:
        num_bytes = math.prod(tensor.shape) * tensor.dtype.itemsize
        self._fill_bytes(tensor.address, value, num_bytes)

    def _fill_bytes(self, address: int, value: int, num_bytes: int) -> None:
        with cuda_call(f"filling {num_bytes} bytes of the {self.manifest.role} engine"):
            self._device.core.fill(address, value, num_bytes, int(current_stream().handle))
