"""What the numbers of an engine are. Nothing else looks at the name of a precision.

Weight-only quantisation stores a matrix as signed codes that share scales; the engine computes in
``activation`` all the same. How scales are shared is decided by what a backend multiplies without
writing the matrix out first: ONNX Runtime's 8-bit kernel wants blocks along the input. TensorRT-RTX
1.7 takes 4-bit codes in blocks and 8-bit codes with one scale a column; 8-bit codes in blocks it
expands to fp16 in memory at every call, which is slower than an fp16 engine.

ONNX Runtime 1.32 multiplies 4-bit codes in blocks of 32 with rows that are equal bit for bit
whatever shares their call; in larger blocks an odd row rounds differently, and verification would
not be exact.

4-bit engines keep the token table and the head in 8 bits, which is worth more than it weighs: on
the default target KL to fp32 falls from 0.50 to 0.40 (blocks of 32), for 14 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.errors import UsageError
from engines.tensors import DType

ONNXRUNTIME, TENSORRT, TENSORRT_RTX = "onnxruntime", "tensorrt", "tensorrt-rtx"


@dataclass(frozen=True, slots=True)
class Coding:
    """A quantised matrix: ``bits`` of a code, and the inputs that can share a scale.

    ``blocks`` are the sizes to choose from, best first; (): all inputs of a column share one.
    ``offsets``: codes are unsigned, and a block has an offset beside its scale.
    """

    bits: int
    blocks: tuple[int, ...] = ()
    offsets: bool = False

    @property
    def largest(self) -> int:
        """The largest code without offsets, 127 or 7: the most negative one is unused."""
        return int(2 ** (self.bits - 1)) - 1


@dataclass(frozen=True, slots=True)
class Precision:
    """One precision on one backend.

    activation     dtype of hidden states, norms, rotary tables, scales and caches
    layers         how the matrices of the layers are stored; None: as ``activation``
    tables         the same of the token table and the head
    gathers_codes  an embedding looks up codes; otherwise it looks up in the dequantised table,
                   which TensorRT compiles to the same (it takes codes nowhere else)
    """

    activation: DType
    layers: Coding | None = None
    tables: Coding | None = None
    gathers_codes: bool = False

    @property
    def blocks(self) -> tuple[int, ...]:
        """Block sizes to choose from, () where nothing is stored in blocks."""
        return () if self.layers is None else self.layers.blocks

    @property
    def is_quantised(self) -> bool:
        """Whether weights are stored as codes."""
        return self.layers is not None

    def describe(self, block: int) -> str:
        """For people: what the engine computes in and how its weights are stored.

        ``block`` is how many inputs share a scale, where that can be chosen.
        """
        parts = [f"computed in {self.activation.value}"]
        if self.layers is not None and self.tables is not None:
            shared = f"blocks of {block}" if self.layers.blocks else "columns"
            parts.append(f"weights in {self.layers.bits} bits by {shared}")
            if self.tables.bits != self.layers.bits:
                parts.append(f"token table and head in {self.tables.bits}")
        return ", ".join(parts)


_ORT_CODES = Coding(8, blocks=(64, 32))
_ORT = {
    "int8": Precision(DType.FLOAT32, _ORT_CODES, _ORT_CODES, gathers_codes=True),
    "fp32": Precision(DType.FLOAT32),
    "int4": Precision(
        DType.FLOAT32, Coding(4, blocks=(32,), offsets=True), _ORT_CODES, gathers_codes=True
    ),
}


def _tensorrt(int4_blocks: tuple[int, ...]) -> Mapping[str, Precision]:
    return {
        "fp16": Precision(DType.FLOAT16),
        "bf16": Precision(DType.BFLOAT16),
        "fp32": Precision(DType.FLOAT32),
        "int8": Precision(DType.FLOAT16, Coding(8), Coding(8)),
        "int4": Precision(DType.FLOAT16, Coding(4, int4_blocks), Coding(8)),
    }


_FITTING: Mapping[str, Mapping[str, Precision]] = {
    ONNXRUNTIME: _ORT,
    # TensorRT documents blocks of 64 and 128 for 4-bit weights; RTX builds and fuses 32 as well.
    TENSORRT: _tensorrt(int4_blocks=(64,)),
    TENSORRT_RTX: _tensorrt(int4_blocks=(64, 32)),
}

BACKENDS = tuple(_FITTING)
NAMES = tuple(dict.fromkeys(name for table in _FITTING.values() for name in table))


def names_for(backend: str) -> tuple[str, ...]:
    """The precisions that ``backend`` has, the default first. UsageError for another backend."""
    if backend not in _FITTING:
        raise UsageError(f"--backend {backend} is unknown; choose {_choice(BACKENDS)}")
    return tuple(_FITTING[backend])


def precision_for(backend: str, name: str) -> Precision:
    """What ``name`` means on ``backend``; UsageError names the ones that fit."""
    fitting = names_for(backend)
    if name not in fitting:
        problem = f"does not fit --backend {backend}" if name in NAMES else "is unknown"
        raise UsageError(f"--precision {name} {problem}; choose {_choice(fitting)}")
    return _FITTING[backend][name]


def _choice(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
