"""An ssd:: operator as a TensorRT layer: IPluginV3 and IPluginCreatorV3One, of any vendor module.

TensorRT and TensorRT-RTX have these classes in modules of their own, so the module is an
argument. A layer keeps nothing but its meaning: the types and shapes come from the network.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from engines.errors import BackendError, BundleIncompatibleError, SsdError
from engines.tensors import DType
from plugins.signature import Signature

MEANING = "meaning"
"""The one field of a layer in a plan: the digest of the signature it was built with."""

VENDOR_NAMES = {
    DType.BOOL: "BOOL",
    DType.INT32: "INT32",
    DType.INT64: "INT64",
    DType.FLOAT16: "HALF",
    DType.BFLOAT16: "BF16",
    DType.FLOAT32: "FLOAT",
}


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """A dense row-major array in device memory; the engine owns the memory."""

    address: int
    dtype: DType
    shape: tuple[int, ...]


class Launcher(Protocol):
    """Runs the layers of an engine."""

    def __call__(
        self,
        layer: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        stream: int,
        workspace: int,
    ) -> None:
        """Queue the work of one layer and return at once.

        Args:
            layer: the operator's full name, ``ssd::Verify@1``.
            inputs, outputs: in the order of the operator's reference.
            stream: a cudaStream_t, perhaps in capture: no allocation and no waiting.
            workspace: address of scratch memory that the engine lends for this run, of as many
                bytes as the layer's `ScratchBytes` asked for; what it holds is left from others.

        Raises an SsdError if the work cannot be queued.
        """


ScratchBytes = Callable[[Sequence[Sequence[int]]], int]
"""Shapes of a layer's inputs -> bytes of scratch memory that a run needs.

The engine asks with its largest shapes, so the answer must do for smaller ones as well.
"""


def no_scratch(_shapes: Sequence[Sequence[int]]) -> int:
    return 0


@dataclass(slots=True)
class LayerHost:
    """What the layers of one vendor module share.

    launcher  runs them, None as long as nobody gave one
    refusals  why layers refused, the last few, oldest first. The vendor turns an exception of a
              layer into a code of its own and prints the text to stderr, so the reason is kept.
    """

    launcher: Launcher | None = None
    refusals: deque[str] = field(default_factory=lambda: deque(maxlen=16))

    @contextmanager
    def noting_refusal(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.refusals.append(str(error) if isinstance(error, SsdError) else repr(error))
            raise


def make_creator(
    trt: Any, signature: Signature, host: LayerHost, scratch_bytes: ScratchBytes = no_scratch
) -> Any:
    """An IPluginCreatorV3One of the vendor module `trt` that creates layers of `signature`.

    The registry does not own a creator: the caller keeps it alive as long as the process may
    parse or deserialise.
    """
    dtypes = {getattr(trt.DataType, name): dtype for dtype, name in VENDOR_NAMES.items()}

    def dtype_name(vendor_type: Any) -> str:
        return dtypes.get(vendor_type) or str(vendor_type.name).lower()

    def tensors(descs: Sequence[Any], addresses: Sequence[int]) -> list[DeviceTensor]:
        return [
            DeviceTensor(int(address), dtypes[desc.type], tuple(desc.dims))
            for desc, address in zip(descs, addresses, strict=True)
        ]

    meaning = np.frombuffer(signature.digest.encode(), np.int8)
    kept_fields = trt.PluginFieldCollection(
        [trt.PluginField(MEANING, meaning, trt.PluginFieldType.CHAR)]
    )

    plugin, core = trt.IPluginV3, trt.IPluginV3OneCore
    build, run = trt.IPluginV3OneBuild, trt.IPluginV3OneRuntime

    class Layer(plugin, core, build, run):  # type: ignore[misc, valid-type]
        """One node in a network, or one layer of an engine."""

        # A PluginField is a bare pointer: without this reference its array is freed with the call.
        field_data = meaning

        def __init__(self) -> None:
            for base in (plugin, core, build, run):
                base.__init__(self)
            self.plugin_name = signature.name
            self.plugin_namespace = signature.namespace
            self.plugin_version = str(signature.version)
            self.num_outputs = len(signature.outputs)

        def get_capability_interface(self, _kind: Any) -> Layer:
            return self

        def clone(self) -> Layer:
            return Layer()

        # Build

        def get_output_data_types(self, input_types: Sequence[Any]) -> list[Any]:
            with host.noting_refusal():
                signature.check_types([dtype_name(each) for each in input_types])
            return [
                getattr(trt.DataType, VENDOR_NAMES[port.dtypes[0]]) for port in signature.outputs
            ]

        def get_output_shapes(
            self, inputs: Sequence[Any], _shape_inputs: Sequence[Any], _exprs: Any
        ) -> list[Any]:
            with host.noting_refusal():
                signature.check_ranks([len(each) for each in inputs])
            return [
                trt.DimsExprs([inputs[i][axis] for i, axis in map(signature.source, port.shape)])
                for port in signature.outputs
            ]

        def supports_format_combination(
            self, position: int, in_out: Sequence[Any], _num_inputs: int
        ) -> bool:
            port = (*signature.inputs, *signature.outputs)[position]
            desc = in_out[position].desc
            is_linear = desc.format == trt.TensorFormat.LINEAR
            return bool(is_linear and dtype_name(desc.type) in port.dtypes)

        def configure_plugin(self, _inputs: Sequence[Any], _outputs: Sequence[Any]) -> None:
            pass

        def get_valid_tactics(self) -> list[int]:
            return []

        def get_workspace_size(self, inputs: Sequence[Any], _outputs: Sequence[Any]) -> int:
            return scratch_bytes([tuple(each.max) for each in inputs])

        # Run

        def get_fields_to_serialize(self) -> Any:
            return kept_fields

        def attach_to_context(self, _context: Any) -> Layer:
            return self.clone()

        def set_tactic(self, _tactic: int) -> None:
            pass

        def on_shape_change(self, inputs: Sequence[Any], _outputs: Sequence[Any]) -> None:
            with host.noting_refusal():
                signature.check_shapes([tuple(each.dims) for each in inputs])

        def enqueue(
            self,
            input_descs: Sequence[Any],
            output_descs: Sequence[Any],
            inputs: Sequence[int],
            outputs: Sequence[int],
            workspace: int,
            stream: int,
        ) -> None:
            """Hand the layer to the launcher that was given at registration.

            Without one this raises BackendError, which the vendor reports as a failed enqueue.
            """
            with host.noting_refusal():
                if host.launcher is None:
                    raise BackendError(
                        f"{signature.full_name} has nothing to run it: "
                        "pass a launcher to plugins.tensorrt.register"
                    )
                host.launcher(
                    signature.full_name,
                    tensors(input_descs, inputs),
                    tensors(output_descs, outputs),
                    stream,
                    workspace,
                )

    class Creator(trt.IPluginCreatorV3One):  # type: ignore[misc]
        """Makes layers while a network is parsed and while a plan is deserialised."""

        def __init__(self) -> None:
            super().__init__()
            self.name = signature.name
            self.plugin_namespace = signature.namespace
            self.plugin_version = str(signature.version)
            # The parser asks for each field named here, and warns of those a node lacks.
            self.field_names = trt.PluginFieldCollection([])

        def create_plugin(self, _name: str, fields: Any, phase: Any) -> Layer:
            if phase == trt.TensorRTPhase.RUNTIME:
                with host.noting_refusal():
                    check_meaning(fields)
            return Layer()

    def check_meaning(fields: Any) -> None:
        found = {each.name: bytes(np.asarray(each.data, np.int8)) for each in fields}
        built_with = found.get(MEANING, b"").rstrip(b"\0").decode(errors="replace")
        if built_with != signature.digest:
            raise BundleIncompatibleError(
                f"the engine was built with another form of {signature.full_name} "
                f"({built_with or 'unmarked'}, expected {signature.digest}); "
                "build the bundle again: python -m export build"
            )

    return Creator()
