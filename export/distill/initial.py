"""The draft that training starts from: some of the target's layers, whole or narrowed, or a draft
that was trained earlier."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from export.checkpoint.api import Checkpoint
from export.checkpoint.weights import EMBEDDING, HEAD, check_places
from export.distill.corpus import Sample, collate
from export.distill.llama import Llama, check_supported

if TYPE_CHECKING:
    from torch import Tensor

BASIS_SEQUENCES = 64  # read to find the directions that a narrower draft keeps
FINAL_NORM = "model.norm.weight"
READERS = {  # norm of a layer: the matrices that read its output
    "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
}
WRITERS = ("self_attn.o_proj", "mlp.down_proj")


def source_layers(num_layers: int, num_target_layers: int) -> list[int]:
    """Target layers that initialise a draft: half from the start, half from the end."""
    from_start = (num_layers + 1) // 2
    return [
        *range(from_start),
        *range(num_target_layers - (num_layers - from_start), num_target_layers),
    ]


def initial_draft(target: Llama, layers: Sequence[int], ids: npt.NDArray[np.int64]) -> Llama:
    """A draft made of target layers ``layers``, the target's final norm and its head rows ``ids``.

    Shares nothing with the target but the embedding, which is frozen. float32; trainable.
    """
    import torch

    weights = {FINAL_NORM: target.weights[FINAL_NORM]}
    for layer, source in enumerate(layers):
        prefix = f"model.layers.{source}."
        for name, tensor in target.weights.items():
            if name.startswith(prefix):
                weights[f"model.layers.{layer}.{name.removeprefix(prefix)}"] = tensor
    weights[HEAD] = target.head[torch.from_numpy(ids).to(target.device)]
    trainable = {name: tensor.float().clone() for name, tensor in weights.items()}
    spec = replace(
        target.spec,
        num_layers=len(layers),
        tied_embeddings=False,
        draft_vocab_size=len(ids),
        embeddings_from_target=True,
    )
    return _made_trainable(Llama(spec, {EMBEDDING: target.weights[EMBEDDING].float(), **trainable}))


def earlier_draft(
    start: Checkpoint,
    target: Llama,
    ids: npt.NDArray[np.int64] | None = None,
    num_layers: int | None = None,
) -> tuple[Llama, npt.NDArray[np.int64]]:
    """A draft that was trained for this target, to go on from (see ``require_draft_of``), and the
    target ids that it proposes, [V'].

    With ``ids`` it proposes those from now on, in place of its own. With ``num_layers`` it grows to
    so many (``_grown``). float32; trainable.
    """
    import torch

    weights = {
        name: torch.from_numpy(start.tensor(name)).to(target.device)
        for name in start.tensor_names()
    }
    if start.spec.embeddings_from_target:
        weights[EMBEDDING] = target.weights[EMBEDDING].float()
    found = start.draft_map()
    own = (np.arange(start.spec.vocab_size) if found is None else found).astype(np.int64)
    spec = start.spec
    if num_layers is not None and num_layers > spec.num_layers:
        weights = _grown(weights, spec.num_layers, num_layers)
        spec = replace(spec, num_layers=num_layers)
    if ids is None and (spec.tied_embeddings or spec.draft_vocab_size is None):
        ids = own  # all of the target's: from now on with a head and a map, as every draft has
    if ids is not None:
        head = Llama(spec, weights).head
        weights[HEAD] = _head_rows(ids, own, head)
        spec = replace(spec, tied_embeddings=False, draft_vocab_size=len(ids))
    return _made_trainable(Llama(spec, weights)), own if ids is None else ids


def _grown(weights: dict[str, Tensor], num_layers: int, wanted: int) -> dict[str, Tensor]:
    """The weights with layers added below the last, which says the same as before at first: an
    added layer reads as the last one does and writes zeros."""
    last = f"model.layers.{num_layers - 1}."
    grown = {name: tensor for name, tensor in weights.items() if not name.startswith(last)}
    for name, tensor in weights.items():
        if not name.startswith(last):
            continue
        part = name.removeprefix(last)
        writes = part.rpartition(".")[0] in WRITERS
        for layer in range(num_layers - 1, wanted - 1):
            grown[f"model.layers.{layer}.{part}"] = tensor * 0 if writes else tensor.clone()
        grown[f"model.layers.{wanted - 1}.{part}"] = tensor
    return grown


def _head_rows(ids: npt.NDArray[np.int64], own: npt.NDArray[np.int64], head: Tensor) -> Tensor:
    """Head rows for ``ids`` [V', C]: those of ``head``, whose rows are ``own``, as far as it has
    them. Others begin as the mean of its rows, which makes them as unlikely as an id is on average.
    The target's rows would not do, which a draft's states have moved away from: 1,023 new ids of
    8,192 made the default draft's loss of 2.0 (24 sequences) one of 8.4; the mean row makes it 2.1,
    zeros 3.9."""
    import torch

    rows = head.mean(0).repeat(len(ids), 1)
    _, at, at_own = np.intersect1d(ids, own, assume_unique=True, return_indices=True)
    rows[torch.from_numpy(at).to(head.device)] = head[torch.from_numpy(at_own).to(head.device)]
    return rows


def require_draft_of(start: Checkpoint, target: Checkpoint, num_layers: int | None) -> None:
    """Raise UsageError unless the checkpoint is a draft that was trained for that target, and has
    no more than ``num_layers``; CheckpointError or UnsupportedModelError where its config.json does
    not describe its weights, or what cannot be trained."""
    try:
        config = json.loads((start.path / "config.json").read_text(encoding="utf-8"))
        origin = config["target"]["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"--start-from {start.name} is no draft of `python -m export distill`: its config.json "
            "does not say what target it was trained for"
        ) from None
    if origin != target.fingerprint():
        name = config["target"].get("name") or "a model"
        raise UsageError(
            f"--start-from {start.name} was trained for {name}, whose files differ from "
            "--target's; train a new draft for this one"
        )
    check_supported(start.spec, start.name)
    check_places(start.spec, start.tensor_names(), str(start.path))
    if start.spec.vocab_size != target.spec.vocab_size:
        raise UsageError(
            f"--start-from {start.name} has {start.spec.vocab_size} ids in its config.json, the "
            f"target {target.spec.vocab_size}"
        )
    if num_layers is not None and num_layers < start.spec.num_layers:
        raise UsageError(
            f"--layers {num_layers}: the draft {start.name} has {start.spec.num_layers}, and can "
            "only grow; name more, or leave it out"
        )


def narrowed(draft: Llama, samples: Sequence[Sample], width: int) -> Llama:
    """The draft with a residual stream of ``width``: its states' main directions (as SliceGPT,
    arXiv 2401.15024, with one basis for all layers). Heads and MLP keep their sizes.

    With P [C, width] orthonormal: embedding E P, readers W diag(g) P, writers P^T W, head
    H diag(g) P, norms sqrt(C / width), so that a state inside the span gives the same logits. The
    embedding is the draft's own then, and stays frozen.
    """
    import torch

    basis = _main_directions(draft, samples)[:, :width]
    wide = draft.weights
    weights = {EMBEDDING: wide[EMBEDDING] @ basis}
    for layer in range(draft.spec.num_layers):
        at = f"model.layers.{layer}"
        for norm, readers in READERS.items():
            for reader in readers:
                name = f"{at}.{reader}.weight"
                weights[name] = (wide[name] * wide[f"{at}.{norm}.weight"]) @ basis
        for writer in WRITERS:
            weights[f"{at}.{writer}.weight"] = basis.T @ wide[f"{at}.{writer}.weight"]
    weights[HEAD] = (wide[HEAD] * wide[FINAL_NORM]) @ basis
    scale = (draft.spec.hidden_size / width) ** 0.5
    for name, tensor in wide.items():
        if name not in weights:
            is_of_stream = tensor.shape == wide[FINAL_NORM].shape and "self_attn" not in name
            weights[name] = torch.full_like(tensor[:width], scale) if is_of_stream else tensor
    spec = replace(draft.spec, hidden_size=width, embeddings_from_target=False)
    copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
    return _made_trainable(Llama(spec, copies))


def _main_directions(draft: Llama, samples: Sequence[Sample]) -> Tensor:
    """Orthonormal [C, C]: directions of the states that the norms read, the strongest first."""
    import torch

    size = draft.spec.hidden_size
    total = torch.zeros((size, size), dtype=torch.float64, device=draft.device)

    def add(states: Tensor) -> None:
        nonlocal total
        rows = torch.nn.functional.normalize(states.double().flatten(0, 1), dim=-1)
        total = total + rows.T @ rows

    seen = Llama(draft.spec, draft.weights, add)
    with torch.no_grad():
        for sample in samples[:BASIS_SEQUENCES]:
            seen.hidden(torch.from_numpy(collate([sample]).tokens).to(draft.device))
    vectors: Tensor = torch.linalg.eigh(total).eigenvectors
    return vectors.flip(-1).float()


def _made_trainable(draft: Llama) -> Llama:
    for name, tensor in draft.weights.items():
        tensor.requires_grad_(name != EMBEDDING)
    return draft
