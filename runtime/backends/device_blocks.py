"""Memory of a device session's inputs and outputs, allocated at loading for every call to come.

    mask, outputs      one block for each kept copy, of the largest call; steps of a copy share them
    all other inputs   a few bytes for each width of a call and each copy, from one pool

What a mask says changes with every call, so it is written before every call. Other inputs hardly
change (``logit_rows`` never does): they stay as they are while rows grow, and a call of fewer texts
has the first rows of those of more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy.typing as npt

from engines.errors import CapacityError
from engines.manifest import DRAFT, EngineManifest
from engines.profiles import PROMPT_CHUNK
from engines.tensors import DType, TensorSpec
from plugins.layer import DeviceTensor
from runtime.backends.api import CallShape
from runtime.device.api import Buffer

_ALIGN = 256
SHARED = ("mask",)


def default_copies(manifest: EngineManifest) -> int:
    """A target keeps one call's outputs, a draft those of each branch step besides."""
    return manifest.limits.num_draft + 1 if manifest.role == DRAFT else 1


def shared_specs(manifest: EngineManifest) -> tuple[TensorSpec, ...]:
    """The tensors whose memory the steps of one copy share, caches left out."""
    # The mask comes last: it grows with the rows, and moves nothing there.
    outputs = [spec for spec in manifest.outputs if not spec.name.startswith("kv.")]
    return (*outputs, *(spec for spec in manifest.inputs if spec.name in SHARED))


def own_specs(manifest: EngineManifest) -> tuple[TensorSpec, ...]:
    """The tensors that each shape of a call has for itself.

    ``num_draft`` is among them, though a draft's engine does not read it: a step always has it.
    """
    inputs = {spec.name: spec for spec in manifest.inputs}
    inputs.setdefault("num_draft", TensorSpec("num_draft", DType.INT64, ("B",)))
    return tuple(
        spec for name, spec in inputs.items() if name not in SHARED and not name.startswith("kv.")
    )


def block_bytes(manifest: EngineManifest, num_slots: int, copy: int) -> int:
    """Bytes of the shared memory of one copy. Copies beyond the first are for branch steps."""
    limits = manifest.limits
    branches = limits.max_branches if manifest.role == DRAFT else 0
    calls = [(num_slots, max(1, branches))]
    if copy == 0:
        calls += [(num_slots, max(2, limits.num_draft + 1)), (1, PROMPT_CHUNK)]
    return max(
        sum(
            _bytes_of(spec, {"B": rows, "T": width, "R": width, "L": manifest.kv.rows})
            for spec in shared_specs(manifest)
        )
        for rows, width in calls
    )


def pool_bytes(manifest: EngineManifest, num_slots: int) -> int:
    """Bytes for the small inputs of every width that the runtime calls: of all slots at once up to
    K + 1 tokens and, as a draft's branches, up to W; of one slot up to a prompt's chunk."""
    widths = [(width, rows, 0) for width in range(1, PROMPT_CHUNK + 1) for rows in {1, width}]
    if manifest.role == DRAFT:
        copies = range(1, default_copies(manifest))
        branches = range(1, manifest.limits.max_branches + 1)
        widths += [(width, width, copy) for width in branches for copy in copies]
    return sum(
        _own_bytes(manifest, _most_texts(manifest, num_slots, width, copy), width, rows)
        for width, rows, copy in widths
    )


def _most_texts(manifest: EngineManifest, num_slots: int, width: int, copy: int) -> int:
    """Texts that a call of this width may have: rounds are of all, a prompt's chunk is of one."""
    limits = manifest.limits
    widest = max(2, limits.num_draft + 1, limits.max_branches if manifest.role == DRAFT else 0)
    return num_slots if copy > 0 or width <= widest else 1


def resolved(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """A tensor's shape with its named dimensions filled in."""
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in spec.shape)


class Allocator(Protocol):
    """The one method of a ``Device`` that is needed here."""

    def allocate(self, name: str, shape: Sequence[int], dtype: npt.DTypeLike) -> Buffer: ...


class DeviceBlocks:
    """The memory, handed out by address. Allocates in its constructor and never again."""

    def __init__(
        self, device: Allocator, manifest: EngineManifest, num_slots: int, num_copies: int
    ) -> None:
        self._manifest = manifest
        self._num_slots = num_slots
        self._num_copies = num_copies
        self._shared: list[Buffer] = [
            device.allocate(
                f"{manifest.role} call {copy}", (block_bytes(manifest, num_slots, copy),), "u1"
            )
            for copy in range(num_copies)
        ]
        self._pool: Buffer = device.allocate(
            f"{manifest.role} inputs", (pool_bytes(manifest, num_slots),), "u1"
        )
        self._num_used = 0
        self._own: dict[tuple[int, int, int], int] = {}
        """Where the inputs of a width, a number of logits and a copy begin in the pool."""

    def tensors(self, shape: CallShape, num_rows: int) -> dict[str, DeviceTensor]:
        """All inputs and outputs of a call but the caches, by name.

        Raises CapacityError for a copy, or a call, that no memory was allocated for.
        """
        if not 0 <= shape.copy < self._num_copies:
            raise CapacityError(
                f"a call of copy {shape.copy}, the session was loaded with {self._num_copies}"
            )
        sizes = sizes_of(shape, num_rows)
        most = _most_texts(self._manifest, self._num_slots, shape.num_tokens, shape.copy)
        key = (shape.num_tokens, shape.num_logits, shape.copy)
        if key not in self._own:
            self._own[key] = self._num_used
            self._num_used += _own_bytes(self._manifest, most, *key[:2])
        own = self._placed(
            self._pool, self._own[key], own_specs(self._manifest), sizes, shape, most
        )
        block = self._shared[shape.copy]
        shared = shared_specs(self._manifest)
        return own | self._placed(block, 0, shared, sizes, shape, shape.num_slots)

    def _placed(
        self,
        block: Buffer,
        offset: int,
        specs: tuple[TensorSpec, ...],
        sizes: Mapping[str, int],
        shape: CallShape,
        most_texts: int,
    ) -> dict[str, DeviceTensor]:
        """Each with room for ``most_texts``, so that it lies where it lies in a call of so many."""
        placed = {}
        for spec in specs:
            placed[spec.name] = DeviceTensor(
                block.address + offset, spec.dtype, resolved(spec, sizes)
            )
            offset += _bytes_of(spec, {**sizes, "B": most_texts})
        if shape.num_slots > most_texts or offset > block.nbytes:
            raise CapacityError(
                f"a call of {shape.num_slots} x {shape.num_tokens} tokens with {shape.num_logits} "
                f"logits does not fit the {block.nbytes} bytes of {block.name!r}; load with more "
                "slots, or rebuild with larger limits"
            )
        return placed


def sizes_of(shape: CallShape, num_rows: int) -> dict[str, int]:
    """The named dimensions of a call; see ``engines.tensors``."""
    return {"B": shape.num_slots, "T": shape.num_tokens, "R": shape.num_logits, "L": num_rows}


def _own_bytes(manifest: EngineManifest, batch: int, width: int, num_logits: int) -> int:
    sizes = {"B": batch, "T": width, "R": num_logits}
    return sum(_bytes_of(spec, sizes) for spec in own_specs(manifest))


def _bytes_of(spec: TensorSpec, sizes: Mapping[str, int]) -> int:
    """Rounded up, so that what follows is aligned."""
    size = math.prod(resolved(spec, sizes)) * spec.dtype.itemsize
    return -(-size // _ALIGN) * _ALIGN
