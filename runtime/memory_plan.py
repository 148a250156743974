"""What a pair takes of each device's memory, worked out before anything is loaded. Pure.

Everything follows from the manifests and the options; what only an engine itself knows (the memory
that a call computes in, a vendor's own) is estimated, and marked so. A plan that does not fit is
refused with its figures and with the option that helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from engines.compat import TENSORRT_BACKENDS
from engines.errors import CapacityError
from engines.manifest import DRAFT, TARGET, EngineManifest
from engines.profiles import PROMPT_CHUNK
from plugins.law import kernel as law
from plugins.sample import args as sample
from plugins.verify import args as verify
from runtime.backends.device_blocks import block_bytes, default_copies, pool_bytes
from runtime.backends.device_caches import staging_bytes
from runtime.backends.tensorrt.session import attended_lengths
from runtime.devices import CPU, DeviceName, DevicePair

MIB = 2**20
VENDOR_BYTES = {"onnxruntime": 256 * MIB, "tensorrt": 128 * MIB, "tensorrt-rtx": 128 * MIB}
"""Kernels and workspaces that a vendor's libraries keep on a GPU: an estimate for each process."""
CONTEXT_BYTES = 2 * MIB
"""Of a compiled engine's execution context and the graphs of its calls: an unmeasured estimate."""
MAX_RANKS = 63
"""Candidates for a bonus token that a draft keeps of each place, at most; else as many as W."""
_FLOAT = 4


@dataclass(frozen=True, slots=True)
class Item:
    """One use of memory, in bytes; ``role`` is the engine it belongs to."""

    what: str
    role: str
    num_bytes: int
    is_estimate: bool = False


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """All that lies on one device."""

    device: str
    items: tuple[Item, ...]

    @property
    def total(self) -> int:
        return sum(item.num_bytes for item in self.items)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A pair at ``num_slots`` texts at once, device by device; page-locked memory is the CPU's."""

    num_slots: int
    devices: tuple[DevicePlan, ...]

    def as_record(self, free: FreeMemory | None = None) -> dict[str, object]:
        """For JSON; with ``free``, what each device has."""
        return {
            "num_slots": self.num_slots,
            "devices": [
                {
                    "device": each.device,
                    "total_bytes": each.total,
                    "free_bytes": None if free is None else free(each.device),
                    "items": [
                        {
                            "engine": item.role,
                            "what": item.what,
                            "bytes": item.num_bytes,
                            "is_estimate": item.is_estimate,
                        }
                        for item in each.items
                    ],
                }
                for each in self.devices
            ],
        }

    def as_text(self, free: FreeMemory | None = None) -> str:
        """For people: a block a device, its sum first."""
        lines = []
        for each in self.devices:
            size = None if free is None else free(each.device)
            of = "" if size is None else f" of {in_words(size)} free"
            lines.append(
                f"memory on {each.device} for {self.num_slots} at once: {in_words(each.total)}{of}"
            )
            lines += [
                f"  {item.role:<7} {item.what:<22} {in_words(item.num_bytes):>9}"
                + (" (estimate)" if item.is_estimate else "")
                for item in each.items
            ]
        return "\n".join(lines)


FreeMemory = Callable[[str], int | None]
"""Bytes that are free on a device ("cpu", "cuda:0"); None where nobody can say."""


def plan_memory(
    engines: Sequence[EngineManifest],
    devices: DevicePair,
    *,
    num_slots: int,
    num_draft: int,
    num_branches: int,
) -> MemoryPlan:
    """The plan for the engines that will be loaded (no draft in mode ``ar``)."""
    found: dict[DeviceName, list[Item]] = {}
    for engine in engines:
        place = devices.target if engine.role == TARGET else devices.draft
        items = found.setdefault(place, [])
        items += _on_gpu(engine, num_slots) if place.is_gpu else _on_cpu(engine, num_slots)
        if place.is_gpu:
            items.append(_state(engine, num_slots, num_draft, num_branches))
            if engine.backend in TENSORRT_BACKENDS:
                items.append(_contexts(engine, num_slots, num_draft, num_branches))
            found.setdefault(CPU, []).append(_pinned(engine, num_slots, num_draft))
    for place, items in found.items():
        if place.is_gpu:
            items.append(Item("vendor libraries", "-", VENDOR_BYTES[engines[0].backend], True))
    ordered = sorted(found.items(), key=lambda each: (not each[0].is_gpu, str(each[0])))
    return MemoryPlan(
        num_slots, tuple(DevicePlan(str(place), tuple(items)) for place, items in ordered)
    )


def require_room(
    plan_for: Callable[[int], MemoryPlan], num_slots: int, devices: DevicePair, free: FreeMemory
) -> MemoryPlan:
    """The plan for ``num_slots``; CapacityError where a GPU has less memory free than it takes.

    ``plan_for`` gives the plan for another number of slots, to find one that fits.
    """
    plan = plan_for(num_slots)
    short = _short_of(plan, free)
    if short is None:
        return plan
    available = free(short.device)
    assert available is not None
    largest = max(short.items, key=lambda item: item.num_bytes)
    estimated = sum(item.num_bytes for item in short.items if item.is_estimate)
    raise CapacityError(
        f"{short.device} has {in_words(available)} free, {in_words(short.total)} are needed for "
        f"{num_slots} at once (most of it {largest.what} of the {largest.role}, "
        f"{in_words(largest.num_bytes)}; {in_words(estimated)} are estimates); "
        f"{_way_out(plan_for, num_slots, devices, free)}"
    )


def in_words(num_bytes: int) -> str:
    """A size for people, in powers of 1024: 1.5 GiB, 98.4 MiB."""
    if num_bytes < 1024:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:.1f} {unit}"


def _short_of(plan: MemoryPlan, free: FreeMemory) -> DevicePlan | None:
    """The first GPU that is too small; the host's memory is the operating system's to manage."""
    for each in plan.devices:
        available = None if each.device == str(CPU) else free(each.device)
        if available is not None and each.total > available:
            return each
    return None


def _way_out(
    plan_for: Callable[[int], MemoryPlan], num_slots: int, devices: DevicePair, free: FreeMemory
) -> str:
    fitting = num_slots - 1
    while fitting > 0 and _short_of(plan_for(fitting), free) is not None:
        fitting -= 1
    if fitting:
        return f"use --batch {fitting} or less"
    if devices.is_shared:
        return f"give the draft a device of its own: --device {devices.target},cuda:N"
    return (
        "free memory on that GPU, or rebuild with a smaller --max-len or a --precision of fewer "
        "bits"
    )


def _on_gpu(engine: EngineManifest, num_slots: int) -> list[Item]:
    is_compiled = engine.backend in TENSORRT_BACKENDS
    kv = engine.kv
    blocks = sum(block_bytes(engine, num_slots, copy) for copy in range(default_copies(engine)))
    items = [
        Item("weights", engine.role, _weights(engine)),
        Item("caches", engine.role, kv.bytes_for(num_slots)),
        Item("logits and inputs", engine.role, blocks + pool_bytes(engine, num_slots)),
        Item("activations", engine.role, _activations(engine, num_slots), is_estimate=True),
    ]
    if not is_compiled and (moving := staging_bytes(kv, engine.lengths, num_slots)):
        items.append(Item("moving caches", engine.role, moving))
    return items


def _on_cpu(engine: EngineManifest, num_slots: int) -> list[Item]:
    width = _widest(engine)
    logits = num_slots * width * engine.model.output_vocab * _FLOAT
    copies = default_copies(engine)
    return [
        Item("weights", engine.role, _weights(engine)),
        Item("caches", engine.role, engine.kv.bytes_for(num_slots)),
        Item("logits", engine.role, copies * logits),
        Item("activations", engine.role, _activations(engine, num_slots), is_estimate=True),
    ]


def _weights(engine: EngineManifest) -> int:
    """A compiled engine is its plan; a graph beside it stays on the disk."""
    if engine.plan is None:
        return engine.weight_bytes
    return sum(file.size for file in engine.files if file.path == engine.plan.file)


def _widest(engine: EngineManifest) -> int:
    """Tokens a row of the widest call of all rows."""
    limits = engine.limits
    branches = limits.max_branches if engine.role == DRAFT else 0
    return max(2, limits.num_draft + 1, branches)


def _activations(engine: EngineManifest, num_slots: int) -> int:
    """Hidden states of the largest call, a feed-forward of four times their width, and one layer's
    attention scores; what is alive at a time is about that."""
    model = engine.model
    calls = ((num_slots, _widest(engine)), (1, PROMPT_CHUNK))
    hidden = 8 * model.hidden_size
    scores = model.num_heads * engine.kv.rows
    return max(rows * width * (hidden + scores) * _FLOAT for rows, width in calls)


def _state(engine: EngineManifest, num_slots: int, num_draft: int, num_branches: int) -> Item:
    """The kernels between engines: their scratch memory, and a draft's candidates of all branches;
    proposals and outcomes are kilobytes."""
    is_target = engine.role == TARGET
    width = num_draft + 1 if is_target else max(num_branches, num_draft + 1)
    rows, vocab = num_slots * width, engine.model.output_vocab
    slices = law.slices_of(rows, vocab)
    own = (
        verify.workspace(num_slots, width, vocab, slices)
        if is_target
        else sample.workspace(rows, slices, min(num_branches, MAX_RANKS) + 2)
    )
    shared = law.workspace(rows, slices)
    scratch = sum(
        math.prod(shape) * np.dtype(kind).itemsize
        for shape, kind in (*shared.values(), *own.values())
    )
    ranks = min(num_branches, MAX_RANKS) + 1
    lists = 0 if is_target else num_draft * num_slots * num_branches * ranks * 8
    return Item("rounds and kernels", engine.role, scratch + lists, is_estimate=True)


def _contexts(engine: EngineManifest, num_slots: int, num_draft: int, num_branches: int) -> Item:
    """A margin for what a compiled engine keeps of each call: as if every number of texts came, at
    every length, in the calls that a round makes; those of a prompt share one context."""
    if engine.role == TARGET:
        calls = 2 if num_draft else 1  # plain decoding and verification
    else:
        calls = 1 + max(1, num_draft if num_branches else 0)  # root and branch steps
    count = 1 + num_slots * calls * len(attended_lengths(engine.lengths))
    return Item("contexts and graphs", engine.role, count * CONTEXT_BYTES, is_estimate=True)


def _pinned(engine: EngineManifest, num_slots: int, num_draft: int) -> Item:
    """Page-locked memory of the host: two readings of a target's logits, for log-probabilities, and
    the kilobytes that tokens and figures come back by."""
    logits = next(spec for spec in engine.outputs if spec.name == "logits")
    rows = 2 * num_slots * (num_draft + 1) if engine.role == TARGET else 0
    size = rows * engine.model.output_vocab * logits.dtype.itemsize
    return Item("page-locked", engine.role, size + 64 * 1024, is_estimate=True)
