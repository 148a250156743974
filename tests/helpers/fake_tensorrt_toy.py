"""Plans of the simulated TensorRT: the toy model of `runtime.backends.toy` as a compiled engine.

The file is JSON that says all of an engine: its border, profiles, aliases, plugin layer and
weights. `run` is what a GPU would do with it, in memory that is known by addresses.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engines.border import graph_inputs, graph_outputs
from engines.codec import decode, encode
from engines.manifest import DRAFT, TARGET, EngineManifest, FileEntry, KvLayout, Limits, PlanFacts
from engines.profiles import ShapeProfile, length_buckets, shape_profiles, trunk_rows
from engines.tensors import DType, TensorSpec
from plugins.layer import DeviceTensor
from plugins.registry import OPERATORS
from plugins.sample.tensorrt import SIGNATURE as SAMPLE
from plugins.verify.tensorrt import SIGNATURE as VERIFY
from runtime.backends.toy import toy_manifest
from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_cuda_objects import Op

PLAN_FILE = "engine.plan"
HEAD_DIM = 64  # a row of 256 bytes, so that every slot begins at a multiple of them
Edit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """What a plan's file says."""

    product: str
    role: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[ShapeProfile, ...]
    aliases: dict[str, str]
    layouts: dict[str, str]
    places: dict[str, str]
    plugin: str
    meaning: str
    table: tuple[float, ...]
    vocab_size: int
    ids: tuple[int, ...]

    @property
    def logits_of(self) -> np.ndarray:
        """float32 [V, V, output vocabulary]: what follows two tokens."""
        shape = (self.vocab_size, self.vocab_size, len(self.ids))
        return np.array(self.table, np.float32).reshape(shape)


def write_toy_plan(
    folder: Path,
    role: str,
    table: np.ndarray,
    limits: Limits,
    *,
    builder: str,
    vocab_map: np.ndarray | None = None,
    capabilities: Sequence[str] = ("9.0",),
    edit: Edit = lambda _plan: None,
) -> EngineManifest:
    """Write an engine's folder; returns its manifest. ``edit`` changes what the plan says, so that
    it is another than the manifest's."""
    vocab_size, _, output_vocab = table.shape
    toy = toy_manifest(role, vocab_size, output_vocab, limits)
    scratch = limits.num_draft * limits.max_branches if role == DRAFT else 0
    trunk = trunk_rows(limits.max_len, limits.num_draft)
    kv = KvLayout(1, 1, HEAD_DIM, DType.FLOAT32, scratch, trunk)
    layer = VERIFY if role == TARGET else SAMPLE
    ids = range(output_vocab) if vocab_map is None else vocab_map.tolist()
    profiles = shape_profiles(
        role,
        max_batch=limits.max_batch,
        num_draft=limits.num_draft,
        max_branches=limits.max_branches,
        rows=kv.rows,
    )
    plan = Blueprint(
        product=builder,
        role=role,
        inputs=graph_inputs(role, kv, kv.rows),
        outputs=graph_outputs(role, kv, kv.rows, output_vocab),
        profiles=profiles,
        aliases={"kv.0.key.next": "kv.0.key", "kv.0.value.next": "kv.0.value"},
        layouts={},
        places={},
        plugin=layer.full_name,
        meaning=layer.digest,
        table=tuple(table.astype(np.float32).ravel().tolist()),
        vocab_size=vocab_size,
        ids=tuple(ids),
    )
    said = encode(plan)
    assert isinstance(said, dict)
    edit(said)
    content = json.dumps(said).encode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PLAN_FILE).write_bytes(content)
    if vocab_map is not None:
        np.save(folder / "vocab_map.npy", vocab_map)
    return replace(
        toy,
        backend=builder.partition(" ")[0],
        kv=kv,
        lengths=length_buckets(kv.rows),
        inputs=plan.inputs,
        outputs=plan.outputs,
        plugins=(plan.plugin,),
        plan=PlanFacts(PLAN_FILE, builder, tuple(capabilities), profiles, (plan.plugin,)),
        files=(FileEntry(PLAN_FILE, len(content), hashlib.sha256(content).hexdigest()),),
    )


def read_blueprint(content: bytes) -> Blueprint:
    """Raises ValueError for what is no plan."""
    return decode(Blueprint, json.loads(content))


def run(
    plan: Blueprint,
    table: np.ndarray,
    shapes: Mapping[str, tuple[int, ...]],
    addresses: Mapping[str, int],
    drafts: int,
) -> None:
    """One call: write the rows, answer the wanted queries, leave the drafted tokens at the address
    ``drafts`` for the Verify layer. A write past the last row is dropped, as TensorRT drops it; a
    query that does not attend just its own past is answered with NaN."""
    kinds = {spec.name: spec.dtype.numpy for spec in (*plan.inputs, *plan.outputs)}

    def tensor(name: str) -> np.ndarray:
        return array_at(addresses[name], shapes[name], kinds[name])

    tokens, positions, write_at = tensor("tokens"), tensor("positions"), tensor("write_at")
    mask, logit_rows, logits = tensor("mask"), tensor("logit_rows"), tensor("logits")
    keys, values = tensor("kv.0.key"), tensor("kv.0.value")
    for row, width in enumerate([tokens.shape[1]] * len(tokens)):
        cells, first = keys[row, 0], int(write_at[row])
        if first >= 0 and first + width <= len(cells):
            cells[first : first + width, 0] = tokens[row]
            cells[first : first + width, 1] = positions[row]
            values[row, 0, first : first + width] = -1
        for place, query in enumerate(logit_rows[row]):
            position = int(positions[row, query])
            attended = cells[: mask.shape[-1]][mask[row, 0, query]]
            if sorted(attended[:, 1]) != list(range(position + 1)):
                logits[row, place] = np.nan
                continue
            in_order = attended[np.argsort(attended[:, 1]), 0].astype(int)
            before = in_order[-2] if position else 0
            logits[row, place] = table[before, in_order[-1]]
    if plan.role == TARGET:
        fed = np.take_along_axis(tokens, logit_rows[:, 1:], axis=1)
        array_at(drafts, fed.shape, np.dtype(np.int64))[...] = fed


@dataclass(frozen=True, slots=True)
class SimulatedLauncher:
    """Runs our layers by their reference on the simulated GPU: a `plugins.layer.Launcher`."""

    cuda: FakeCuda

    def __call__(
        self,
        layer: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        stream: int,
        workspace: int,
    ) -> None:
        assert workspace % 256 == 0
        reference = OPERATORS[layer.partition("::")[2].partition("@")[0]].reference

        def compute() -> None:
            for tensor, result in zip(outputs, reference(*map(_array, inputs)), strict=True):
                _array(tensor)[...] = result

        own = self.cuda.stream_of(stream)
        with self.cuda.entered("layer", stream, detail=layer, gpu=own.ordinal):
            own.submit(Op(compute))


def array_at(address: int, shape: Sequence[int], kind: np.dtype) -> np.ndarray:
    """Memory of the simulated GPU as an array."""
    size = math.prod(shape) * kind.itemsize
    if not size:
        return np.zeros(tuple(shape), kind)
    return np.frombuffer((ctypes.c_char * size).from_address(address), kind).reshape(shape)


def _array(tensor: DeviceTensor) -> np.ndarray:
    return array_at(tensor.address, tensor.shape, tensor.dtype.numpy)
