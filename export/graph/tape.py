"""A thin writer over onnx-ir's tape: named nodes, constants shared, weights as initializers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from engines.tensors import DType, TensorSpec

Attribute = str | int | float | Sequence[int]

_IR_TYPES = {
    DType.BOOL: ir.DataType.BOOL,
    DType.INT32: ir.DataType.INT32,
    DType.INT64: ir.DataType.INT64,
    DType.FLOAT16: ir.DataType.FLOAT16,
    DType.BFLOAT16: ir.DataType.BFLOAT16,
    DType.FLOAT32: ir.DataType.FLOAT,
}


def ir_type(dtype: DType) -> ir.DataType:
    """The element type in ONNX; its ``numpy()`` is the type to cast to, for bfloat16 too."""
    return _IR_TYPES[dtype]


class GraphTape:
    """Collects the nodes and initializers of one graph."""

    def __init__(self) -> None:
        self._tape = ir.tape.Tape()
        self._constants: dict[tuple[object, ...], ir.Value] = {}
        self._functions: list[ir.Function] = []
        self.inputs: list[ir.Value] = []
        self.outputs: list[ir.Value] = []

    def input(self, spec: TensorSpec) -> ir.Value:
        value = _value(spec)
        self.inputs.append(value)
        return value

    def output(self, spec: TensorSpec, value: ir.Value) -> None:
        """Make ``value`` an output under the name, type and shape of ``spec``."""
        value.name = spec.name
        value.type = ir.TensorType(ir_type(spec.dtype))
        value.shape = ir.Shape(spec.shape)
        self.outputs.append(value)

    def op(
        self,
        kind: str,
        *inputs: ir.Value | None,
        name: str,
        domain: str = "",
        **attributes: Attribute,
    ) -> ir.Value:
        """One node with one output; node and output are called ``name``."""
        value = self._tape.op(kind, inputs, attributes, domain=domain, name=name)
        value.name = name
        return value

    def ops(
        self,
        kind: str,
        *inputs: ir.Value | None,
        name: str,
        num_outputs: int,
        domain: str = "",
        **attributes: Attribute,
    ) -> Sequence[ir.Value]:
        """One node with several outputs, called ``name.0``, ``name.1``, ..."""
        values = self._tape.op_multi_out(
            kind, inputs, attributes, num_outputs=num_outputs, domain=domain, name=name
        )
        for index, value in enumerate(values):
            value.name = f"{name}.{index}"
        return values

    def weight(self, name: str, array: np.ndarray) -> ir.Value:
        return self._tape.initializer(ir.Tensor(np.ascontiguousarray(array), name=name))

    def twin(self, weight: ir.Value, name: str) -> ir.Value:
        """A second initializer over the same memory, stored once (see ``export.graph.store``)."""
        assert weight.const_value is not None
        return self._tape.initializer(ir.Tensor(weight.const_value.numpy(), name=name))

    def ints(self, *values: int) -> ir.Value:
        """A shared int64 constant [len(values)]."""
        key = ("ints", values)
        if key not in self._constants:
            name = "const." + "_".join(str(v) for v in values)
            self._constants[key] = self.weight(name, np.array(values, dtype=np.int64))
        return self._constants[key]

    def function(self, function: ir.Function) -> None:
        """Carry the body of an operator that some node stands for."""
        self._functions.append(function)

    def model(self, opset: int) -> ir.Model:
        domains = {function.domain: 1 for function in self._functions}
        graph = ir.Graph(
            self.inputs,
            self.outputs,
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": opset, **domains},
            name="ssd",
        )
        return ir.Model(graph, ir_version=11, producer_name="ssd-trt", functions=self._functions)


def _value(spec: TensorSpec) -> ir.Value:
    return ir.Value(
        name=spec.name,
        shape=ir.Shape(spec.shape),
        type=ir.TensorType(ir_type(spec.dtype)),
    )
