"""What a compiled engine takes of a GPU's memory: planned from its manifest, stated once loaded."""

from __future__ import annotations

from dataclasses import dataclass

from engines.manifest import EngineManifest
from runtime.backends.device_blocks import block_bytes, default_copies, pool_bytes


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Bytes on the GPU.

    weights      of the engine; planned, the size of its plan, which holds little else
    activations  what a call computes in; None before the engine is loaded, which alone knows
    caches       keys and values of all slots
    borders      inputs and outputs of the calls
    """

    weights: int
    activations: int | None
    caches: int
    borders: int

    @property
    def total(self) -> int:
        """All that is known."""
        return self.weights + (self.activations or 0) + self.caches + self.borders


def planned(
    manifest: EngineManifest, *, num_slots: int, num_copies: int | None = None
) -> EngineMemory:
    """The memory of a session before it is loaded; arguments as for ``TensorRtSession``."""
    copies = default_copies(manifest) if num_copies is None else num_copies
    plan = manifest.plan
    weights = sum(file.size for file in manifest.files if plan and file.path == plan.file)
    blocks = sum(block_bytes(manifest, num_slots, copy) for copy in range(copies))
    return EngineMemory(
        weights=weights,
        activations=None,
        caches=manifest.kv.bytes_for(num_slots),
        borders=blocks + pool_bytes(manifest, num_slots),
    )
