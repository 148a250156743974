"""As much of a TensorRT module as compiling touches: for standard TensorRT, and for bad ends.

``parse_from_file`` reads the real ONNX file and makes one layer of each node, as TensorRT does with
the nodes of a decoder. What a test wants to go wrong it sets on the module.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import onnx

from tests.plugins.fake_tensorrt import DataType, FakeTensorRT

PLAN = b"a plan"
SCATTERED = {"TensorScatter": "KV_CACHE_UPDATE", "Attention": "ATTENTION_INPUT"}


class Severity(IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2


class LayerType(Enum):
    PLUGIN_V3 = "plugin"
    KV_CACHE_UPDATE = "update"
    ATTENTION_INPUT = "attention"
    OTHER = "other"


class Tensor:
    def __init__(self, name: str, dtype: DataType = DataType.HALF) -> None:
        self.name = name
        self.dtype = dtype


class Layer:
    def __init__(self, name: str, kind: LayerType, inputs: list[Tensor], output: str) -> None:
        self.name, self.type, self._inputs = name, kind, inputs
        self._output = Tensor(output)
        self.attention = SimpleNamespace(decomposable=False)

    @property
    def num_inputs(self) -> int:
        return len(self._inputs)

    def get_input(self, index: int) -> Tensor | None:
        return self._inputs[index]

    def get_output(self, _index: int) -> Tensor:
        return self._output


class AttentionLayer(Layer):
    pass


class Network:
    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.inputs: list[Tensor] = []

    num_layers = property(lambda self: len(self.layers))
    num_inputs = property(lambda self: len(self.inputs))

    def get_layer(self, index: int) -> Layer:
        return self.layers[index]

    def get_input(self, index: int) -> Tensor:
        return self.inputs[index]


class Config:
    """Remembers what it was told."""

    def __init__(self, trt: FakeCompiler) -> None:
        self._trt = trt
        self.limits: dict[str, int] = {}
        self.cleared: list[str] = []
        self.capabilities: list[Any] = []
        self.num_compute_capabilities = 0
        self.profiles: list[dict[str, Any]] = []
        self.times: bytes | None = None
        self.progress_monitor: Any = None

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.limits[pool] = size

    def clear_flag(self, flag: str) -> None:
        self.cleared.append(flag)

    def set_compute_capability(self, value: Any, index: int) -> bool:
        assert index == len(self.capabilities) < self.num_compute_capabilities
        self.capabilities.append(value)
        return value not in self._trt.refused_capabilities

    def add_optimization_profile(self, profile: Any) -> int:
        self.profiles.append(profile.shapes)
        return len(self.profiles) - 1

    def create_timing_cache(self, content: bytes) -> bytes:
        return content

    def set_timing_cache(self, content: bytes, ignore_mismatch: bool) -> None:
        assert not ignore_mismatch
        self.times = content

    def get_timing_cache(self) -> Any:
        return SimpleNamespace(serialize=lambda: (self.times or b"") + b"+ times")


class Parser:
    def __init__(self, network: Network, logger: Any) -> None:
        self.network, self.logger = network, logger
        self.errors: list[Any] = []

    num_errors = property(lambda self: len(self.errors))

    def get_error(self, index: int) -> Any:
        return self.errors[index]


class Profile:
    def __init__(self) -> None:
        self.shapes: dict[str, Any] = {}

    def set_shape(self, name: str, least: Any, typical: Any, most: Any) -> None:
        self.shapes[name] = (least, typical, most)


def parser_error(operator: str, node: str, description: str) -> Any:
    return SimpleNamespace(
        node_operator=lambda: operator, node_name=lambda: node, desc=lambda: description
    )


class FakeCompiler(FakeTensorRT):
    """A vendor module. ``on_build`` stands in for compiling, ``says`` are errors logged before it.

    ``drops`` are operands that the parser loses, as (operator, index); ``inlines`` operators that
    become something else than the layer they should.
    """

    LayerType = LayerType
    IAttentionInputLayer = AttentionLayer
    MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    BuilderFlag = SimpleNamespace(TF32="tf32")
    NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=0)

    class ILogger:
        Severity = Severity

    class IProgressMonitor:
        pass

    def __init__(self, version: str = "11.4.0.106") -> None:
        super().__init__()
        self.__version__ = version
        self.config: Config | None = None
        self.network: Network | None = None
        self.errors: list[Any] = []
        self.says: list[str] = []
        self.drops: set[tuple[str, int]] = set()
        self.inlines: set[str] = set()
        self.refused_capabilities: set[Any] = set()
        self.has_builder = True
        self.attention_type = DataType.HALF
        self.on_build: Callable[[Any], bytes | None] = lambda _monitor: PLAN

    def Builder(self, logger: Any) -> Any:  # noqa: N802
        if not self.has_builder:
            logger.log(Severity.ERROR, "CUDA initialization failure with error: 35")
            raise TypeError("factory function returned nullptr")

        def build(_network: Network, config: Config) -> bytes | None:
            for message in self.says:
                logger.log(Severity.ERROR, message)
            return self.on_build(config.progress_monitor)

        def configure() -> Config:
            self.config = Config(self)
            return self.config

        return SimpleNamespace(
            create_network=self._new_network,
            create_builder_config=configure,
            create_optimization_profile=Profile,
            build_serialized_network=build,
        )

    def OnnxParser(self, network: Network, logger: Any) -> Any:  # noqa: N802
        parser = Parser(network, logger)
        parser.errors = self.errors

        def parse(path: str) -> bool:
            self._parse(network, onnx.load(path, load_external_data=False).graph)
            return not self.errors

        parser.parse_from_file = parse  # type: ignore[attr-defined]
        return parser

    def _new_network(self, flags: int) -> Network:
        assert flags & 1, "a network must be strongly typed"
        self.network = Network()
        return self.network

    def _parse(self, network: Network, graph: onnx.GraphProto) -> None:
        network.inputs = [Tensor(value.name) for value in graph.input]
        for node in graph.node:
            names = {attribute.name for attribute in node.attribute}
            kind = LayerType[SCATTERED.get(node.op_type, "OTHER")]
            if "plugin_namespace" in names and node.op_type not in self.inlines:
                kind = LayerType.PLUGIN_V3
            if node.op_type in self.inlines:
                kind = LayerType.OTHER
            inputs = [
                Tensor(name, self.attention_type)
                for index, name in enumerate(node.input)
                if name and (node.op_type, index) not in self.drops
            ]
            network.layers.append(Layer(node.name, kind, inputs, node.output[0]))
