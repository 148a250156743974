"""Weights in the graph: linear layers, the token embedding and the output head, fp32 or int8.

int8 layers are ``MatMul(x, DequantizeLinear(codes, scales))`` in blocks along the input; ONNX
Runtime fuses the pair into its 8-bit kernel (only where nothing else reads the codes), TensorRT
takes it as it stands.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from export.graph.quantize import check_block, quantize_blocks
from export.graph.tape import GraphTape


class LinearWeights:
    """Writes weight matrices of one precision. Tied embedding and head share one initializer."""

    def __init__(self, tape: GraphTape, precision: str, block: int) -> None:
        self.tape = tape
        self.int8 = precision == "int8"
        self.block = block

    def linear(self, x: ir.Value, weight: np.ndarray, name: str) -> ir.Value:
        """x [..., K] times ``weight`` [N, K] (Hugging Face layout) -> [..., N]."""
        if not self.int8:
            return self.tape.op(
                "MatMul", x, self.tape.weight(f"{name}.weight", weight.T), name=name
            )
        codes, scales = self._quantized(weight, name)
        return self._int8_matmul(x, codes, scales, name)

    def embedding(self, tokens: ir.Value, table: np.ndarray, name: str, *, tied: bool) -> Embedding:
        """Rows of ``table`` [V, C] for ``tokens`` [B, T]; keep the result to tie a head to it."""
        if not self.int8:
            weight = self.tape.weight(f"{name}.weight", table)
            return Embedding(self.tape.op("Gather", weight, tokens, name=name, axis=0), (weight,))
        # A tied head wants [C, V], and the bytes are stored once: a lookup then gathers columns
        # (32 us a token on the default target). An untied table is stored by rows.
        axis = 1 if tied else 0
        codes, scales = self._quantized(table, name, by_rows=not tied)
        picked = self.tape.op("Gather", codes, tokens, name=f"{name}.codes_at", axis=axis)
        scale = self.tape.op("Gather", scales, tokens, name=f"{name}.scales_at", axis=axis)
        dense = self.tape.op(
            "DequantizeLinear",
            picked,
            scale,
            name=f"{name}.dense",
            axis=0 if tied else 2,
            block_size=self.block,
        )
        if tied:
            dense = self.tape.op("Transpose", dense, name=name, perm=[1, 2, 0])
        return Embedding(dense, (codes, scales))

    def tied_head(self, x: ir.Value, embedding: Embedding, width: int, name: str) -> ir.Value:
        """x [B, R, C] times the embedding's own matrix, transposed -> [B, R, V]."""
        if self.int8:
            codes, scales = (self.tape.twin(w, f"{name}.{w.name}") for w in embedding.weights)
            return self._int8_matmul(x, codes, scales, name)
        (table,) = embedding.weights
        # Gemm reads the table transposed; a Transpose node would make the runtime hold a copy.
        flat = self.tape.op("Reshape", x, self.tape.ints(-1, width), name=f"{name}.rows")
        product = self.tape.op("Gemm", flat, table, name=f"{name}.product", transB=1)
        shape = self.tape.op("Shape", x, name=f"{name}.shape", start=0, end=2)
        full = self.tape.op("Concat", shape, self.tape.ints(-1), name=f"{name}.full_shape", axis=0)
        return self.tape.op("Reshape", product, full, name=name)

    def _quantized(
        self, weight: np.ndarray, name: str, *, by_rows: bool = False
    ) -> tuple[ir.Value, ir.Value]:
        """Codes and scales of ``weight`` [N, K], laid out [K, N] or ``by_rows`` [N, K]."""
        check_block(name, weight.shape[1], self.block)
        codes, scales = quantize_blocks(np.ascontiguousarray(weight.T), self.block)
        if by_rows:
            codes, scales = codes.T, scales.T
        return self.tape.weight(f"{name}.codes", codes), self.tape.weight(f"{name}.scales", scales)

    def _int8_matmul(self, x: ir.Value, codes: ir.Value, scales: ir.Value, name: str) -> ir.Value:
        dense = self.tape.op(
            "DequantizeLinear",
            codes,
            scales,
            name=f"{name}.dequantized",
            axis=0,
            block_size=self.block,
        )
        return self.tape.op("MatMul", x, dense, name=name)


class Embedding:
    """A looked-up embedding [B, T, C] and the initializers behind it."""

    def __init__(self, rows: ir.Value, weights: tuple[ir.Value, ...]) -> None:
        self.rows = rows
        self.weights = weights
