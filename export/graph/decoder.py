"""The decoder graph of one engine, node by node (the border is the table in ``export.graph.api``).

The canonical form has a cache of static size S and attends Slice(cache, L); what a backend wants
otherwise is a rewrite (``export.graph.passes``). All families are pre-norm decoders with rotary
attention and a gated MLP; ``ModelSpec`` says what else one has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir

from engines.border import graph_inputs, graph_outputs, kv_names, next_name
from engines.bundle import MODEL_FILE
from engines.manifest import TARGET, KvLayout, Limits
from engines.tensors import DType
from export.checkpoint.spec import GELU_TANH
from export.graph.api import DATA_FILE, GraphRequest, GraphResult, Progress
from export.graph.linear import LinearWeights
from export.graph.operators import sample_node, verify_node
from export.graph.precision import precision_for
from export.graph.rope import rotary_tables
from export.graph.store import save_model
from export.graph.tape import GraphTape
from export.graph.window import window_mask

OPSET = 24
ATTENDED = ".attended"
"""Suffix of the nodes that cut the cache to the attended rows; see ``export.graph.passes``."""


class DecoderGraph:
    """Builds one graph. ``consumed`` holds the names of the checkpoint tensors used so far."""

    def __init__(self, request: GraphRequest, progress: Progress) -> None:
        self.request = request
        self.spec = request.spec
        self.progress = progress
        self.consumed: set[str] = set()
        self.num_parameters = 0
        self.tape = GraphTape()
        precision = precision_for(request.backend, request.precision)
        assert request.kv.dtype is precision.activation, "caches are of the activations' type"
        self.weights = LinearWeights(self.tape, precision, request.block)

    def build(self) -> ir.Model:
        spec, request = self.spec, self.request
        self._inputs = {
            s.name: self.tape.input(s)
            for s in graph_inputs(request.role, request.kv, request.kv.rows)
        }
        turns = sorted({self._turns_alone(local) for local in self._kinds()})
        self._rotary = {alone: self._rotary_tables(alone) for alone in turns}
        embedding = self.weights.embedding(
            self._inputs["tokens"], self._embedding(), "embed", tied=spec.tied_embeddings
        )
        x = embedding.rows  # [B, T, C]
        if spec.embedding_scale != 1.0:
            x = self._times(x, spec.embedding_scale, "embed.scaled")
        self._attended_rows = self.tape.op(
            "Shape", self._inputs["mask"], name="rows", start=3, end=4
        )
        self._masks = {local: self._mask(local) for local in self._kinds()}
        updated = []
        for layer in range(spec.num_layers):
            self.progress("layers", layer, spec.num_layers)
            x, caches = self._layer(x, layer)
            updated.extend(caches)
        self.progress("layers", spec.num_layers, spec.num_layers)
        rows = self.tape.op(
            "Unsqueeze", self._inputs["logit_rows"], self.tape.ints(-1), name="picked"
        )
        x = self.tape.op("GatherND", x, rows, name="picked_hidden", batch_dims=1)  # [B, R, C]
        x = self._norm(x, self._take("model.norm.weight"), "norm")
        if spec.tied_embeddings:
            logits = self.weights.tied_head(x, embedding, spec.hidden_size, "head")
        else:
            logits = self.weights.head(x, self._take("lm_head.weight"), "head")
        if self.weights.precision.activation is not DType.FLOAT32:
            logits = self.tape.op("Cast", logits, name="logits_fp32", to=int(ir.DataType.FLOAT))
        if spec.logit_softcap is not None:
            logits = self._softcap(logits, spec.logit_softcap)
        choices = self._verify(logits) if request.role == TARGET else [self._sample(logits)]
        outputs = graph_outputs(request.role, request.kv, request.kv.rows, self._output_vocab)
        for tensor, value in zip(outputs, [logits, *choices, *updated], strict=True):
            self.tape.output(tensor, value)
        return self.tape.model(OPSET)

    def result(self, model: ir.Model) -> GraphResult:
        """What ``build_graph`` returns for ``model``, the graph after the backend's rewrites."""
        request = self.request
        cache = model.graph.inputs[-1].shape
        assert cache is not None, "every input of the border has a shape"
        rows = cache[2]
        dim = rows if isinstance(rows, int) else str(rows)

        def save(folder: Path) -> None:
            save_model(
                model,
                folder / MODEL_FILE,
                folder / DATA_FILE,
                lambda done, total: self.progress("writing", done, total),
            )

        return GraphResult(
            save=save,
            inputs=graph_inputs(request.role, request.kv, dim),
            outputs=graph_outputs(request.role, request.kv, dim, self._output_vocab),
            plugins=tuple(f"{domain}::{name}" for domain, name, _ in model.functions),
            num_parameters=self.num_parameters,
        )

    @property
    def _output_vocab(self) -> int:
        return self.spec.draft_vocab_size or self.spec.vocab_size

    def _take(self, name: str) -> np.ndarray:
        self.consumed.add(name)
        array = self.request.tensor(name)
        self.num_parameters += array.size
        return array

    def _embedding(self) -> np.ndarray:
        if self.request.embedding is None:
            return self._take("model.embed_tokens.weight")
        return self.request.embedding()

    def _kinds(self) -> tuple[bool, ...]:
        """The kinds of layers that there are: attending the whole text (False), local (True)."""
        layers = range(self.spec.num_layers)
        return tuple(sorted({self.spec.is_local(layer) for layer in layers}))

    def _turns_alone(self, local: bool) -> bool:
        """Whether the layers of a kind have a rotary embedding of their own."""
        return local and self.spec.local_rope_theta is not None

    def _rotary_tables(self, local: bool) -> tuple[ir.Value, ir.Value]:
        positions = num_positions(self.request.limits, self.request.kv)
        cos, sin = rotary_tables(self.spec, positions, self.weights.dtype, local=local)
        name = "rope.local" if local else "rope"
        return self.tape.weight(f"{name}.cos", cos), self.tape.weight(f"{name}.sin", sin)

    def _mask(self, local: bool) -> ir.Value:
        """What the layers of a kind attend; a window that no call can reach past is left out."""
        mask, window, kv = self._inputs["mask"], self.spec.window, self.request.kv
        if not local or window is None or window >= num_positions(self.request.limits, kv):
            return mask
        return window_mask(
            self.tape,
            mask,
            self._inputs["positions"],
            self._attended_rows,
            kv=kv,
            window=window,
        )

    def _layer(self, x: ir.Value, layer: int) -> tuple[ir.Value, list[ir.Value]]:
        at, name = f"model.layers.{layer}.", f"layer.{layer}"
        sandwich = self.spec.sandwich_norms
        hidden = self._norm(x, self._take(f"{at}input_layernorm.weight"), f"{name}.norm")
        attended, caches = self._attention(hidden, layer, f"{at}self_attn.", f"{name}.attention")
        after = self._take(f"{at}post_attention_layernorm.weight")
        if sandwich:
            attended = self._norm(attended, after, f"{name}.attention_norm")
        x = self.tape.op("Add", x, attended, name=f"{name}.after_attention")
        before = self._take(f"{at}pre_feedforward_layernorm.weight") if sandwich else after
        hidden = self._mlp(self._norm(x, before, f"{name}.mlp_norm"), f"{at}mlp.", f"{name}.mlp")
        if sandwich:
            after = self._take(f"{at}post_feedforward_layernorm.weight")
            hidden = self._norm(hidden, after, f"{name}.mlp_output_norm")
        return self.tape.op("Add", x, hidden, name=f"{name}.out"), caches

    def _attention(
        self, hidden: ir.Value, layer: int, at: str, name: str
    ) -> tuple[ir.Value, list[ir.Value]]:
        spec, tape = self.spec, self.tape
        width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        is_local = spec.is_local(layer)
        qkv = self.weights.linear(
            hidden, self._fused(at, ("q", "k", "v"), "qkv_proj"), f"{name}.qkv"
        )
        if spec.qkv_bias:
            bias = np.concatenate([self._take(f"{at}{part}_proj.bias") for part in "qkv"])
            qkv = self._plus(qkv, bias, f"{name}.qkv_bias")
        query, key, value = tape.ops(
            "Split",
            qkv,
            tape.ints(width, kv_width, kv_width),
            name=f"{name}.split",
            num_outputs=3,
            axis=-1,
        )
        query = self._heads(query, spec.num_heads, f"{name}.query")
        key = self._heads(key, spec.num_kv_heads, f"{name}.key")
        value = self._heads(value, spec.num_kv_heads, f"{name}.value")
        if spec.qk_norm:
            query = self._norm(query, self._take(f"{at}q_norm.weight"), f"{name}.query_norm")
            key = self._norm(key, self._take(f"{at}k_norm.weight"), f"{name}.key_norm")
        query, key, value = (
            tape.op("Transpose", part, name=f"{name}.{label}_by_head", perm=[0, 2, 1, 3])
            for part, label in ((query, "query"), (key, "key"), (value, "value"))
        )  # [B, H, T, D]
        query, key = (
            self._rotate(query, is_local, f"{name}.query_rotary"),
            self._rotate(key, is_local, f"{name}.key_rotary"),
        )
        caches = [
            tape.op(
                "TensorScatter",
                self._inputs[cache],
                new,
                self._inputs["write_at"],
                name=next_name(cache),
                axis=2,
                mode="linear",
            )
            for cache, new in zip(kv_names(layer), (key, value), strict=True)
        ]
        keys, values = (self._attended(cache) for cache in caches)
        context = tape.op(
            "Attention",
            query,
            keys,
            values,
            self._masks[is_local],
            name=f"{name}.attend",
            scale=spec.score_scale,
        )
        context = tape.op("Transpose", context, name=f"{name}.by_token", perm=[0, 2, 1, 3])
        context = tape.op("Reshape", context, tape.ints(0, 0, width), name=f"{name}.context")
        output = self.weights.linear(context, self._take(f"{at}o_proj.weight"), f"{name}.output")
        if spec.output_bias:
            output = self._plus(output, self._take(f"{at}o_proj.bias"), f"{name}.output_bias")
        return output, caches

    def _attended(self, cache: ir.Value) -> ir.Value:
        tape = self.tape
        return tape.op(
            "Slice",
            cache,
            tape.ints(0),
            self._attended_rows,
            tape.ints(2),
            name=f"{cache.name}{ATTENDED}",
        )

    def _mlp(self, hidden: ir.Value, at: str, name: str) -> ir.Value:
        tape, width = self.tape, self.spec.intermediate_size
        fused = self._fused(at, ("gate", "up"), "gate_up_proj")
        both = self.weights.linear(hidden, fused, f"{name}.gate_up")
        gate, up = tape.ops(
            "Split", both, tape.ints(width, width), name=f"{name}.split", num_outputs=2, axis=-1
        )
        if self.spec.activation == GELU_TANH:
            active = tape.op("Gelu", gate, name=f"{name}.gelu", approximate="tanh")
        else:
            sigmoid = tape.op("Sigmoid", gate, name=f"{name}.sigmoid")
            active = tape.op("Mul", gate, sigmoid, name=f"{name}.silu")
        gated = tape.op("Mul", active, up, name=f"{name}.gated")
        return self.weights.linear(gated, self._take(f"{at}down_proj.weight"), f"{name}.down")

    def _heads(self, x: ir.Value, num_heads: int, name: str) -> ir.Value:
        shape = self.tape.ints(0, 0, num_heads, self.spec.head_dim)
        return self.tape.op("Reshape", x, shape, name=name)  # [B, T, H, D]

    def _fused(self, at: str, parts: tuple[str, ...], stored: str) -> np.ndarray:
        """Projections that read the same, as one [N, K]: the checkpoint has them so, or apart."""
        if self.spec.fused_projections:
            return self._take(f"{at}{stored}.weight")
        return np.concatenate([self._take(f"{at}{part}_proj.weight") for part in parts])

    def _rotate(self, x: ir.Value, is_local: bool, name: str) -> ir.Value:
        inputs = (x, *self._rotary[self._turns_alone(is_local)], self._inputs["positions"])
        part = self.spec.rotary_dim
        if part is None:
            return self.tape.op("RotaryEmbedding", *inputs, name=name)
        return self.tape.op("RotaryEmbedding", *inputs, name=name, rotary_embedding_dim=part)

    def _norm(self, x: ir.Value, weight: np.ndarray, name: str) -> ir.Value:
        if self.spec.norms_add_one:
            weight = weight + np.float32(1)
        scale = self.weights.plain(f"{name}.weight", weight)
        return self.tape.op(
            "RMSNormalization", x, scale, name=name, axis=-1, epsilon=self.spec.rms_norm_eps
        )

    def _plus(self, x: ir.Value, bias: np.ndarray, name: str) -> ir.Value:
        return self.tape.op("Add", x, self.weights.plain(f"{name}.weight", bias), name=name)

    def _times(self, x: ir.Value, factor: float, name: str) -> ir.Value:
        scale = self.weights.plain(f"{name}.factor", np.array(factor, np.float32))
        return self.tape.op("Mul", x, scale, name=name)

    def _softcap(self, logits: ir.Value, cap: float) -> ir.Value:
        """cap * tanh(logits / cap), in float32 whatever the engine computes in."""
        limit = self.tape.weight("softcap.limit", np.array(cap, np.float32))
        share = self.tape.op("Div", logits, limit, name="softcap.share")
        bounded = self.tape.op("Tanh", share, name="softcap.tanh")
        return self.tape.op("Mul", bounded, limit, name="softcap")

    def _verify(self, logits: ir.Value) -> Sequence[ir.Value]:
        picked = self.tape.op(
            "GatherElements", self._inputs["tokens"], self._inputs["logit_rows"], name="fed", axis=1
        )
        drafts = self.tape.op(
            "Slice",
            picked,
            self.tape.ints(1),
            self.tape.ints(2**31),
            self.tape.ints(1),
            name="drafts",
        )
        return verify_node(self.tape, logits, drafts, self._inputs["num_draft"])

    def _sample(self, logits: ir.Value) -> ir.Value:
        vocab_map = self.request.vocab_map
        if vocab_map is None:
            vocab_map = np.arange(self._output_vocab)
        ids_map = self.tape.weight("vocab_map", vocab_map.astype(np.int64))
        return sample_node(self.tape, logits, ids_map)


def num_positions(limits: Limits, kv: KvLayout) -> int:
    """Positions a call may name: branches of K tokens after K accepted ones at the text's end,
    and the padding of a prompt's tail, which fills the trunk."""
    return max(limits.max_len + 2 * limits.num_draft, kv.trunk_rows) + 1
