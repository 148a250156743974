"""Weights in the graph: linear layers, the token embedding and the output head, in one precision.

A quantised layer is ``MatMul(x, DequantizeLinear(codes, scales))``. ONNX Runtime fuses the pair
into its kernel for 8- or 4-bit codes, only where nothing else reads the codes. TensorRT-RTX fuses
it into its matrix product, and into the lookup of an embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from engines.errors import UnsupportedModelError
from export.graph.precision import Coding, Precision
from export.graph.quantize import quantize, quantize_with_offsets
from export.graph.tape import GraphTape, ir_type


@dataclass(frozen=True, slots=True)
class Codes:
    """A quantised matrix as stored: [K, N], or [N, K] where ``by_rows``.

    ``block`` inputs share a scale, and an offset if there are ``offsets``; None: all those of a
    column.
    """

    codes: ir.Value
    scales: ir.Value
    offsets: ir.Value | None
    by_rows: bool
    block: int | None


@dataclass(frozen=True, slots=True)
class Embedding:
    """A looked-up embedding [B, T, C], and the table that a tied head multiplies with.

    ``table`` is [V, C] where ``by_rows``, else [C, V]; it is codes where a lookup reads codes.
    """

    rows: ir.Value
    table: ir.Value | Codes
    by_rows: bool


class LinearWeights:
    """Writes the weights of one engine. Tied embedding and head share their bytes.

    ``block`` is one of the precision's and divides the inputs of every matrix (``require_fit``); it
    is unused where the precision has none. Each method raises
    UnsupportedModelError for a matrix that the precision cannot hold.
    """

    def __init__(self, tape: GraphTape, precision: Precision, block: int) -> None:
        self.tape = tape
        self.precision = precision
        self.block = block
        self.dtype = ir_type(precision.activation).numpy()

    def plain(self, name: str, array: np.ndarray) -> ir.Value:
        """A float32 array as an initializer of the activations' type."""
        self._require_fit(name, array)
        return self.tape.weight(name, array.astype(self.dtype))

    def linear(self, x: ir.Value, weight: np.ndarray, name: str) -> ir.Value:
        """x [..., K] times ``weight`` [N, K] (Hugging Face layout) -> [..., N]."""
        return self._product(x, weight, name, self.precision.layers)

    def head(self, x: ir.Value, weight: np.ndarray, name: str) -> ir.Value:
        """x [B, R, C] times ``weight`` [V, C] -> [B, R, V]."""
        return self._product(x, weight, name, self.precision.tables)

    def embedding(self, tokens: ir.Value, table: np.ndarray, name: str, *, tied: bool) -> Embedding:
        """Rows of ``table`` [V, C] for ``tokens`` [B, T]; keep the result to tie a head to it."""
        coding = self.precision.tables
        if coding is None:
            weight = self.plain(f"{name}.weight", table)
            rows = self.tape.op("Gather", weight, tokens, name=name, axis=0)
            return Embedding(rows, weight, by_rows=True)
        # A tied head wants [C, V], and the bytes are stored once: a lookup then gathers columns
        # (32 us a token on the CPU's default target). An untied table is stored by rows.
        codes = self._codes(table, name, coding, by_rows=not tied)
        if self.precision.gathers_codes:
            return Embedding(self._lookup_codes(codes, tokens, name), codes, codes.by_rows)
        dense = self._dequantized(codes, name)
        if not tied:
            rows = self.tape.op("Gather", dense, tokens, name=name, axis=0)
        else:
            columns = self.tape.op("Gather", dense, tokens, name=f"{name}.columns", axis=1)
            rows = self.tape.op("Transpose", columns, name=name, perm=[1, 2, 0])
        return Embedding(rows, dense, codes.by_rows)

    def tied_head(self, x: ir.Value, embedding: Embedding, width: int, name: str) -> ir.Value:
        """x [B, R, C] times the embedding's own matrix, transposed -> [B, R, V]."""
        table = embedding.table
        if isinstance(table, Codes):
            table = self._dequantized(self._twin(table, name), name)
        if not embedding.by_rows:
            return self.tape.op("MatMul", x, table, name=name)
        # Gemm reads the table transposed; a Transpose node would make the runtime hold a copy.
        flat = self.tape.op("Reshape", x, self.tape.ints(-1, width), name=f"{name}.rows")
        product = self.tape.op("Gemm", flat, table, name=f"{name}.product", transB=1)
        shape = self.tape.op("Shape", x, name=f"{name}.shape", start=0, end=2)
        full = self.tape.op("Concat", shape, self.tape.ints(-1), name=f"{name}.full_shape", axis=0)
        return self.tape.op("Reshape", product, full, name=name)

    def _product(
        self, x: ir.Value, weight: np.ndarray, name: str, coding: Coding | None
    ) -> ir.Value:
        if coding is None:
            matrix = self.plain(f"{name}.weight", weight.T)
        else:
            matrix = self._dequantized(self._codes(weight, name, coding, by_rows=False), name)
        return self.tape.op("MatMul", x, matrix, name=name)

    def _codes(self, weight: np.ndarray, name: str, coding: Coding, *, by_rows: bool) -> Codes:
        """``weight`` [N, K] quantised, laid out [K, N] or ``by_rows`` [N, K]."""
        self._require_fit(f"{name}.weight", weight)
        inputs = weight.shape[1]
        block = self.block if coding.blocks else None
        columns, offsets = np.ascontiguousarray(weight.T), None
        if coding.offsets:
            assert block is not None, "offsets are a block's"
            codes, scales, offsets = quantize_with_offsets(columns, block, coding.bits, self.dtype)
        else:
            codes, scales = quantize(columns, block or inputs, coding.largest, self.dtype)
        if block is None:
            scales = scales[0]
        parts = {"codes": codes, "scales": scales}
        if offsets is not None:
            parts["offsets"] = offsets
        if by_rows:
            parts = {label: array.T for label, array in parts.items()}
        if coding.bits == 4:
            packed = (ir.DataType.UINT4 if coding.offsets else ir.DataType.INT4).numpy()
            parts |= {
                label: array.astype(packed) for label, array in parts.items() if label != "scales"
            }
        stored = {
            label: self.tape.weight(f"{name}.{label}", array) for label, array in parts.items()
        }
        return Codes(stored["codes"], stored["scales"], stored.get("offsets"), by_rows, block)

    def _require_fit(self, name: str, array: np.ndarray) -> None:
        """Codes have to fit, too: they are multiplied out in the activations' type."""
        largest = max(array.max(), -array.min())
        with np.errstate(over="ignore"):
            fits = np.isfinite(largest.astype(self.dtype))
        if fits:
            return
        if self.dtype == np.float16:
            ends, others = "65504", "bf16 or fp32"
        else:
            ends, others = "3.3895e+38", "fp32"
        raise UnsupportedModelError(
            f"{name} holds {largest:g}, {self.precision.activation.value} ends at {ends}; "
            f"build with --precision {others}"
        )

    def _twin(self, table: Codes, name: str) -> Codes:
        """The same bytes under another name, for a reader of its own."""
        assert table.offsets is None, "tables are stored without offsets"
        codes, scales = (
            self.tape.twin(value, f"{name}.{value.name}") for value in (table.codes, table.scales)
        )
        return Codes(codes, scales, None, table.by_rows, table.block)

    def _dequantized(self, stored: Codes, name: str) -> ir.Value:
        """The matrix in the activations' type, laid out as ``stored``."""
        values, name = [stored.codes, stored.scales], f"{name}.dequantized"
        if stored.offsets is not None:
            values.append(stored.offsets)
        input_axis = 1 if stored.by_rows else 0
        if stored.block is None:
            return self.tape.op("DequantizeLinear", *values, name=name, axis=1 - input_axis)
        return self.tape.op(
            "DequantizeLinear", *values, name=name, axis=input_axis, block_size=stored.block
        )

    def _lookup_codes(self, table: Codes, tokens: ir.Value, name: str) -> ir.Value:
        """Rows [B, T, C] for ``tokens``, dequantised after the lookup."""
        assert table.block is not None
        assert table.offsets is None, "tables are stored without offsets"
        axis = 0 if table.by_rows else 1
        codes = self.tape.op("Gather", table.codes, tokens, name=f"{name}.codes_at", axis=axis)
        scales = self.tape.op("Gather", table.scales, tokens, name=f"{name}.scales_at", axis=axis)
        dense = self.tape.op(
            "DequantizeLinear",
            codes,
            scales,
            name=f"{name}.dense",
            axis=2 if table.by_rows else 0,
            block_size=table.block,
        )
        if table.by_rows:
            return dense
        return self.tape.op("Transpose", dense, name=name, perm=[1, 2, 0])
