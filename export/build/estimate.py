"""How big a build gets, from the sizes alone, before a weight is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod

from engines.manifest import KvLayout
from export.build.options import BuildOptions
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import weight_shapes

PROCESS_BYTES = 200 * 2**20
"""Python with numpy and the ONNX libraries loaded."""


@dataclass(frozen=True, slots=True)
class EngineEstimate:
    """Bytes of one engine: on disk, of its caches when every slot is full, and while building."""

    role: str
    num_parameters: int
    file_bytes: int
    kv_bytes: int
    build_bytes: int


def estimate_engine(
    role: str, spec: ModelSpec, kv: KvLayout, options: BuildOptions
) -> EngineEstimate:
    """fp32 stores 4 bytes a weight; int8 one, and a float32 scale for every block of a matrix.

    While it is built, all of the engine is in memory, and of its largest weight some float32
    copies (as read, fused or transposed, and the steps of quantisation).
    """
    shapes = list(weight_shapes(spec).values())
    num_parameters = sum(prod(shape) for shape in shapes)
    if spec.embeddings_from_target:
        shapes.append((spec.vocab_size, spec.hidden_size))
    matrices = sum(prod(shape) for shape in shapes if len(shape) == 2)
    vectors = sum(prod(shape) for shape in shapes if len(shape) == 1)
    rotary = kv.trunk_rows * spec.head_dim
    if options.precision == "int8":
        file_bytes = matrices + 4 * (matrices // options.block) + 4 * (vectors + rotary)
        copies = 4
    else:
        file_bytes = 4 * (matrices + vectors + rotary)
        copies = 2
    largest = max(prod(shape) for shape in shapes)
    return EngineEstimate(
        role=role,
        num_parameters=num_parameters,
        file_bytes=file_bytes,
        kv_bytes=kv.bytes_for(options.max_batch),
        build_bytes=PROCESS_BYTES + file_bytes + copies * 4 * largest,
    )


def free_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def free_disk(folder: str | os.PathLike[str]) -> int:
    """Bytes that this user can still write below ``folder``."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize
