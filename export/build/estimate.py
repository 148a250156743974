"""How big a build gets, from the sizes alone, before a weight is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from engines.manifest import DRAFT, KvLayout
from engines.profiles import shape_profiles
from export.build.options import BuildOptions
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING, HEAD, weight_shapes
from export.graph.precision import ONNXRUNTIME, Coding

PROCESS_BYTES = 200 * 2**20
"""Python with numpy and the ONNX libraries loaded."""
ID_BYTES = 8
"""An entry of a draft's map to target ids."""
COMPILER_BYTES = 250 * 10**6
"""The compiler's own libraries and tables."""
PROFILE_BYTES, LAYER_BYTES, CODED_LAYER_BYTES = 3 * 10**6, 250_000, 550_000
"""Kernels in a plan for each profile, and for each profile and layer (of dense, of coded weights).

Like all of the compiler's figures a fit to TensorRT-RTX 1.7, on the default pair and one wide
layer: plans came out within 3 % of it, memory at 65 to 97 %.
"""
COMPILE_LAYER_BYTES = 4 * 10**6
"""Memory of the compiler for each profile and layer."""
CERTAIN_SHARE = 0.6
"""Of an announced peak of memory: every build that was measured took more than this."""
LARGEST_GPU_BYTES = 288 * 10**9
"""The memory of the largest GPU that there is (B300)."""


@dataclass(frozen=True, slots=True)
class EngineEstimate:
    """Bytes of one engine: on disk, of its caches when every slot is full, and while building.

    ``plan_bytes`` is the compiled engine, and ``compile_bytes`` the memory that compiling takes at
    its peak, besides the mapped weight file; both are 0 where the backend runs the graph itself.
    """

    role: str
    num_parameters: int
    file_bytes: int
    kv_bytes: int
    build_bytes: int
    plan_bytes: int
    compile_bytes: int

    @property
    def disk_bytes(self) -> int:
        """On disk while it is built: the graph with its weights, and the plan if it has one."""
        return self.file_bytes + self.plan_bytes

    @property
    def peak_bytes(self) -> int:
        """Memory at the peak: the graph is built first, and compiled when it is written."""
        return max(self.build_bytes, self.compile_bytes)


def estimate_engine(
    role: str, spec: ModelSpec, kv: KvLayout, options: BuildOptions
) -> EngineEstimate:
    """Sizes of one engine.

    While its graph is built, all of it is in memory (4-bit codes a byte each, as in the compiler),
    and of its largest weight some float32 copies (as read, fused or transposed, and the steps of
    quantisation).
    """
    precision = options.arithmetic
    shapes = weight_shapes(spec)
    num_parameters = sum(map(prod, shapes.values()))
    if spec.embeddings_from_target:
        shapes[EMBEDDING] = (spec.vocab_size, spec.hidden_size)
    tables = [shapes[name] for name in (EMBEDDING, HEAD) if name in shapes]
    matrices = [
        shape for name, shape in shapes.items() if len(shape) == 2 and name not in (EMBEDDING, HEAD)
    ]
    plain = sum(prod(shape) for shape in shapes.values() if len(shape) == 1)
    plain += kv.trunk_rows * spec.head_dim  # rotary tables
    file_bytes = (
        precision.activation.itemsize * plain
        + _stored_bytes(matrices, precision.layers, options)
        + _stored_bytes(tables, precision.tables, options)
        + (ID_BYTES * (spec.draft_vocab_size or spec.vocab_size) if role == DRAFT else 0)
    )
    layers_in_4_bits = precision.layers is not None and precision.layers.bits == 4
    unpacked = sum(map(prod, matrices)) // 2 if layers_in_4_bits else 0
    copies = 2 if precision.layers is None else 4
    largest = max(map(prod, shapes.values()))
    plan_bytes, compile_bytes = _compiled_bytes(role, spec, kv, options, file_bytes)
    return EngineEstimate(
        role=role,
        num_parameters=num_parameters,
        file_bytes=file_bytes,
        kv_bytes=kv.bytes_for(options.max_batch),
        build_bytes=PROCESS_BYTES + file_bytes + unpacked + copies * 4 * largest,
        plan_bytes=plan_bytes,
        compile_bytes=compile_bytes + unpacked if compile_bytes else 0,
    )


def _compiled_bytes(
    role: str, spec: ModelSpec, kv: KvLayout, options: BuildOptions, file_bytes: int
) -> tuple[int, int]:
    """Bytes of the plan, and of memory to compile it: two plans, and some for every layer."""
    if options.backend == ONNXRUNTIME:
        return 0, 0
    profiles = shape_profiles(
        role,
        max_batch=options.max_batch,
        num_draft=options.num_draft,
        max_branches=options.max_branches,
        rows=kv.rows,
    )
    is_dense = options.arithmetic.layers is None
    layer_bytes = LAYER_BYTES if is_dense else CODED_LAYER_BYTES
    plan_bytes = file_bytes + len(profiles) * (PROFILE_BYTES + spec.num_layers * layer_bytes)
    working_bytes = len(profiles) * spec.num_layers * COMPILE_LAYER_BYTES
    return plan_bytes, COMPILER_BYTES + 2 * plan_bytes + working_bytes


def _stored_bytes(
    matrices: Sequence[tuple[int, ...]], coding: Coding | None, options: BuildOptions
) -> int:
    """Weight matrices [N, K] in a file: plain, or codes and a scale for each block or column."""
    num_weights = sum(map(prod, matrices))
    itemsize = options.arithmetic.activation.itemsize
    if coding is None:
        return itemsize * num_weights
    num_columns = sum(outputs for outputs, _ in matrices)
    num_scales = num_weights // options.block if coding.blocks else num_columns
    scale_bits = 8 * itemsize + (coding.bits if coding.offsets else 0)
    return (num_weights * coding.bits + num_scales * scale_bits) // 8


def free_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    return _memory("MemAvailable")


def total_memory() -> int | None:
    """Bytes of this machine, its swap space included; None where the system does not tell."""
    return _memory("MemTotal", "SwapTotal")


def _memory(*names: str) -> int | None:
    """The sum of some lines of /proc/meminfo, which are in kibibytes."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            sizes = dict(line.split(":") for line in file)
        return sum(int(sizes[name].split()[0]) * 1024 for name in names)
    except (OSError, ValueError, KeyError):
        return None


def free_disk(folder: str | os.PathLike[str]) -> int:
    """Bytes that this user can still write below ``folder``."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize
