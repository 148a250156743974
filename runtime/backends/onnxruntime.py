"""Engines on ONNX Runtime's CPU provider.

Caches are bound in place: the graph's cache input and output are one address, so TensorScatter
writes rows without copying the cache. Input, output and cache memory is ours and bound by
address once a shape; a call allocates nothing but the runtime's own reused arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.bundle import MODEL_FILE
from engines.errors import BackendError, MissingDependencyError
from engines.manifest import TARGET, EngineManifest
from engines.tensors import DType, TensorSpec
from runtime.backends.api import CallShape
from runtime.backends.caches import RowBuckets
from runtime.backends.cpu_kernels import kernels, session_options
from runtime.backends.host import HostSession
from runtime.backends.huge_pages import huge_pages
from runtime.backends.mapped_weights import give_back_pages
from runtime.backends.outputs import Outputs
from runtime.backends.telemetry import switch_off_telemetry
from runtime.backends.vocab_map import load_vocab_map
from runtime.device.api import Device
from runtime.device.machine import cpu_model

ORT_TYPES = {
    DType.BOOL: "tensor(bool)",
    DType.INT32: "tensor(int32)",
    DType.INT64: "tensor(int64)",
    DType.FLOAT16: "tensor(float16)",
    DType.FLOAT32: "tensor(float)",
}


class OrtSession(HostSession["OrtStep"]):
    """One engine. Create it on the stream that will run it: pool threads inherit its cores."""

    def __init__(
        self,
        folder: Path,
        manifest: EngineManifest,
        device: Device,
        *,
        num_threads: int,
        num_slots: int,
    ) -> None:
        self.manifest = manifest
        super().__init__(RowBuckets(device, manifest, num_slots))
        self._outputs = Outputs(manifest, num_slots)
        self.vocab_map = load_vocab_map(folder, manifest)
        self._folder = folder
        self._num_threads = num_threads
        self._runtime: Any = None

    def load(self) -> None:
        """Load the model. Raises BackendError; MissingDependencyError without onnxruntime."""
        onnxruntime = import_onnxruntime()
        options = session_options(onnxruntime, self._num_threads)
        try:
            with huge_pages():
                self._runtime = onnxruntime.InferenceSession(
                    str(self._folder / MODEL_FILE), options, providers=["CPUExecutionProvider"]
                )
        except Exception as error:
            raise BackendError(
                f"ONNX Runtime {onnxruntime.__version__} cannot load {self._folder / MODEL_FILE}: "
                f"{one_line(error)}"
            ) from error
        give_back_pages(self._folder)
        require_border(self._runtime, self.manifest, self._folder / MODEL_FILE)

    def close(self) -> None:
        super().close()
        self._runtime = None

    def _make_step(self, shape: CallShape) -> OrtStep:
        sizes = {
            "B": shape.num_slots,
            "T": shape.num_tokens,
            "R": shape.num_logits,
            "L": self._caches.rows,
        }

        binding = self._runtime.io_binding()
        inputs = {
            spec.name: np.zeros(resolve(spec.shape, sizes), spec.dtype.numpy)
            for spec in self.manifest.inputs
            if not spec.name.startswith("kv.")
        }
        outputs = {
            spec.name: self._outputs.array(
                shape.copy, spec.name, resolve(spec.shape, sizes), spec.dtype.numpy
            )
            for spec in self.manifest.outputs
            if not spec.name.startswith("kv.")
        }
        for name, value in inputs.items():
            bind(binding.bind_input, name, value)
        for name, value in outputs.items():
            bind(binding.bind_output, name, value)
        slots = slice(shape.first_slot, shape.first_slot + shape.num_slots)
        for layer in range(self.manifest.kv.num_layers):
            for part, label in enumerate(("key", "value")):
                rows = self._caches.view(2 * layer + part)[slots]
                bind(binding.bind_input, f"kv.{layer}.{label}", rows)
                bind(binding.bind_output, f"kv.{layer}.{label}.next", rows)
        num_slots = shape.num_slots
        is_target = self.manifest.role == TARGET
        unused = np.zeros(num_slots, np.int64)
        return OrtStep(
            shape=shape,
            tokens=inputs["tokens"],
            positions=inputs["positions"],
            write_at=inputs["write_at"],
            mask=inputs["mask"][:, 0],
            logit_rows=inputs["logit_rows"],
            num_draft=inputs["num_draft"] if is_target else unused,
            logits=outputs["logits"],
            accepted=outputs["accepted"] if is_target else unused,
            next=outputs["next"] if is_target else unused,
            sample=unused if is_target else outputs["sample"],
            _binding=binding,
            _session=self,
        )

    def run_bound(self, binding: object, shape: CallShape) -> None:
        """Run one bound call; on failure the caches are zeroed and BackendError is raised."""
        try:
            self._runtime.run_with_iobinding(binding)
        except Exception as error:
            self._caches.zero()
            raise BackendError(
                f"the {self.manifest.role} engine failed at {shape.num_slots} x "
                f"{shape.num_tokens} tokens, {self._caches.rows} rows: {one_line(error)}"
            ) from error


@dataclass(slots=True)
class OrtStep:
    """See ``runtime.backends.api.Step``."""

    shape: CallShape
    tokens: np.ndarray
    positions: np.ndarray
    write_at: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray
    num_draft: np.ndarray
    logits: np.ndarray
    accepted: np.ndarray
    next: np.ndarray
    sample: np.ndarray
    _binding: object
    _session: OrtSession

    def run(self) -> None:
        self._session.run_bound(self._binding, self.shape)


def import_onnxruntime() -> Any:
    """The package; MissingDependencyError without it."""
    switch_off_telemetry()
    try:
        import onnxruntime
    except ImportError:
        raise MissingDependencyError("onnxruntime", "cpu", "running this bundle") from None
    return onnxruntime


def runtime_identity() -> str:
    """What kernels engines run on here: a key for measurements that outlive the process."""
    onnxruntime = import_onnxruntime()
    found = kernels(onnxruntime)
    return f"onnxruntime {onnxruntime.__version__}, kernels {found.identity}, {cpu_model()}"


def require_border(runtime: Any, manifest: EngineManifest, path: Path) -> None:
    """BackendError unless the loaded model takes and gives just what its manifest says."""
    for what, specs, values in (
        ("inputs", manifest.inputs, runtime.get_inputs()),
        ("outputs", manifest.outputs, runtime.get_outputs()),
    ):
        expected = {f"{spec.name} {ORT_TYPES[spec.dtype]} {list(spec.shape)}" for spec in specs}
        found = {f"{value.name} {value.type} {value.shape}" for value in values}
        if expected != found:
            raise BackendError(
                f"{path} has other {what} than its manifest says, first {min(expected ^ found)}; "
                "rebuild the bundle"
            )
    kv = manifest.kv
    shape = ("B", kv.num_kv_heads, "L", kv.head_dim)
    caches = {
        TensorSpec(f"kv.{layer}.{part}", kv.dtype, shape)
        for layer in range(kv.num_layers)
        for part in ("key", "value")
    }
    logits = TensorSpec("logits", DType.FLOAT32, ("B", "R", manifest.model.output_vocab))
    found_caches = {spec for spec in manifest.inputs if spec.name.startswith("kv.")}
    if found_caches != caches or logits not in manifest.outputs:
        raise BackendError(
            f"the caches or the vocabulary of {path} are not those of its manifest; "
            "rebuild the bundle"
        )


def resolve(shape: Sequence[int | str], sizes: Mapping[str, int]) -> list[int]:
    """A tensor's shape with its named dimensions filled in."""
    return [sizes[dim] if isinstance(dim, str) else dim for dim in shape]


def bind(method: Callable[..., None], name: str, array: np.ndarray) -> None:
    """Bind ``array``'s own memory under ``name``."""
    method(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."
