"""From a checkpoint's tensors to one ONNX file per engine.

The graph's border (opset 24; dimensions as in ``engines.tensors``; S = L on ONNX Runtime; F is the
type that the engine computes in, ``export.graph.precision``):

    in   tokens      int64 [B, T]        token ids
         positions   int64 [B, T]        logical (RoPE) positions, independent of the cache row
         write_at    int64 [B]           first cache row that this call's T keys and values go to
         mask        bool  [B, 1, T, L]  True where a token may attend a cache row; no row all False
         logit_rows  int64 [B, R]        which of the T tokens get logits
         num_draft   int64 [B]           target only: how many of the R - 1 drafted tokens are real
         kv.{l}.key, kv.{l}.value        F [B, Hkv, S, D], updated in place
    out  logits      float32 [B, R, V]   V is the draft's own vocabulary when it is reduced
         accepted, next  int64 [B]       target only: greedy verification (the ssd::Verify node)
         sample      int64 [B, R]        draft only: greedy choice, in target ids (ssd::Sample)
         kv.{l}.key.next, kv.{l}.value.next  the same memory as the inputs

The mask knows nothing of sliding windows: local layers narrow it by ``positions``
(``export.graph.window``). The drafted tokens that ``Verify`` compares are ``tokens`` at
``logit_rows[:, 1:]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.errors import CheckpointError, UnsupportedModelError
from engines.manifest import KvLayout, Limits
from engines.tensors import DType, TensorSpec
from export.checkpoint.spec import ModelSpec
from export.graph.precision import Precision, names_for, precision_for

DATA_FILE = "model.onnx.data"
_PREFERRED = ("int4", "int8", "fp16", "bf16", "fp32")  # the smallest first

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, done so far, total)."""


@dataclass(frozen=True, slots=True)
class GraphRequest:
    """One engine to build. ``tensor(name)`` gives float32 in Hugging Face names and layout.

    ``precision`` and ``backend`` go together as ``export.graph.precision`` says; ``block`` is one
    of that precision's blocks, unused where it has none.
    ``vocab_map`` (int, [draft vocabulary], target ids) is set for a draft of reduced vocabulary;
    ``embedding`` gives the target's table [V, C] to a draft that has none of its own.
    """

    role: str
    spec: ModelSpec
    tensor: Callable[[str], np.ndarray]
    names: tuple[str, ...]
    limits: Limits
    kv: KvLayout
    precision: str
    block: int
    backend: str
    vocab_map: np.ndarray | None = None
    embedding: Callable[[], np.ndarray] | None = None


@dataclass(frozen=True, slots=True)
class GraphResult:
    """A finished graph. ``save(folder)`` writes ``model.onnx`` and ``model.onnx.data``."""

    save: Callable[[Path], None]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    plugins: tuple[str, ...]
    num_parameters: int


def build_graph(request: GraphRequest, progress: Progress | None = None) -> GraphResult:
    """Build, rewrite for the backend, and return the graph; nothing is written yet.

    Raises CheckpointError when the checkpoint has a tensor that the graph does not use (or lacks
    one that it needs), and UnsupportedModelError when the precision does not fit the model.
    """
    require_fit(
        request.role,
        request.spec,
        request.kv,
        request.limits,
        request.backend,
        request.precision,
        request.block,
    )
    from export.graph.decoder import DecoderGraph
    from export.graph.passes import rewrite_for

    decoder = DecoderGraph(request, progress or (lambda _what, _done, _total: None))
    model = decoder.build()
    unused = sorted(set(request.names) - decoder.consumed)
    if unused:
        raise CheckpointError(
            f"{len(unused)} tensor(s) of the checkpoint have no place in a {request.spec.family} "
            f"graph, first {unused[0]}; refusing to drop weights silently"
        )
    rewrite_for(request.backend, model, request.spec)
    return decoder.result(model)


def require_fit(
    role: str,
    spec: ModelSpec,
    kv: KvLayout,
    limits: Limits,
    backend: str,
    precision: str,
    block: int,
) -> None:
    """Raise UnsupportedModelError for an engine that a model's configuration alone rules out.

    Gemma's hidden states outgrow float16, which ends at 65,504: in Gemma 3 270M they reach 103,795
    (600 random tokens, transformers in float32). For windows see ``export.graph.window``.
    """
    arithmetic = precision_for(backend, precision)
    computed_in = arithmetic.activation
    if spec.family == "gemma3" and computed_in is DType.FLOAT16:
        raise UnsupportedModelError(
            f"the hidden states of Gemma 3 outgrow float16, in which {precision} engines compute; "
            "build with --precision bf16 or fp32"
        )
    if kv.scratch_rows and spec.window is not None and spec.window < limits.num_draft:
        raise UnsupportedModelError(
            f"the draft's sliding window of {spec.window} positions is shorter than the "
            f"{limits.num_draft} tokens of a branch; build with --num-draft {spec.window} or less"
        )
    if arithmetic.blocks:
        _require_blocks(role, spec, backend, arithmetic, block)


def _require_blocks(
    role: str, spec: ModelSpec, backend: str, arithmetic: Precision, block: int
) -> None:
    widths = {  # of what the matrices multiply
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads x head_dim": spec.num_heads * spec.head_dim,
    }
    fitting = [each for each in arithmetic.blocks if not any(x % each for x in widths.values())]
    if block in fitting:
        return
    if fitting:
        rules_out, way_out = block, f"--block {fitting[0]}"
    else:  # name what the smallest blocks do not divide either
        rules_out = min(arithmetic.blocks)
        without = (name for name in names_for(backend) if not precision_for(backend, name).blocks)
        way_out = f"--precision {min(without, key=_PREFERRED.index)}"
    name, width = next((name, width) for name, width in widths.items() if width % rules_out)
    raise UnsupportedModelError(
        f"the {role}'s {name} is {width}, which blocks of {rules_out} weights do not divide; "
        f"build with {way_out}"
    )
