"""A trained draft as a Hugging Face folder: config.json, model.safetensors and a README.md.

``lm_head.weight`` has the draft's own rows [V', C]; ``d2t`` int64 [V'] maps them to target ids
(target id = draft id + d2t[draft id]). ``model.embed_tokens.weight`` is not stored for a draft of
the target's width: config.json says ``embeddings_from_target`` and the pair takes the target's.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.errors import BackendError, UsageError
from export.checkpoint.rope import Llama3Rope
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING
from export.distill import card
from export.distill.facts import Facts, evaluated, measured
from export.distill.llama import Llama
from export.distill.vocabulary import offsets
from export.packages import require

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def check_output(out: Path) -> None:
    """Raise UsageError unless ``out`` is free and can be made: before training, not after."""
    if out.exists():
        raise UsageError(f"--out {out} exists already; name another folder, or remove it")
    above = next(parent for parent in out.absolute().parents if parent.exists())
    try:
        # Tried, not asked: permission bits know nothing of read-only and virtual file systems.
        tempfile.TemporaryDirectory(prefix=".ssd-", dir=above).cleanup()
    except OSError:
        raise UsageError(
            f"--out {out} cannot be written: {above} is not a writable folder"
        ) from None


def write(out: Path, draft: Llama, ids: npt.NDArray[np.int64], facts: Facts) -> None:
    """Write the folder ``out`` whole or not at all (a sibling is filled, then renamed).

    Weights are stored as fp16. Raises BackendError for a weight that is not finite there.
    """
    save = require("safetensors.numpy", "safetensors", "export", "writing a draft", ("save",)).save
    tensors: dict[str, npt.NDArray[np.generic]] = {"d2t": offsets(ids)}
    for name, tensor in draft.weights.items():
        if name == EMBEDDING and draft.spec.embeddings_from_target:
            continue
        with np.errstate(over="ignore"):  # becomes infinite: reported below
            tensors[name] = tensor.detach().cpu().numpy().astype(np.float16)
        if not np.isfinite(tensors[name]).all():
            raise BackendError(
                f"the trained weight {name} is not finite in fp16: training diverged; "
                "run again with another --seed or more data"
            )
    config = config_of(draft.spec, facts)

    check_output(out)
    partial = out.parent / f".{out.name}.{os.getpid()}.partial"
    try:
        partial.mkdir(parents=True)
        # Not save_file: its files can be read by their owner only.
        (partial / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
        text = json.dumps(config, indent=2) + "\n"
        (partial / "config.json").write_text(text, encoding="utf-8")
        readme = card.text(out.name, draft.spec, facts)
        (partial / "README.md").write_text(readme, encoding="utf-8")
        partial.rename(out)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def config_of(spec: ModelSpec, facts: Facts) -> dict[str, object]:
    """config.json of a draft: the usual keys of its family, and ours."""
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": spec.family,
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "max_position_embeddings": spec.max_position,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": False,
        "eos_token_id": eos_value(spec.eos_token_ids),
        "bos_token_id": spec.bos_token_id,
        "draft_vocab_size": spec.draft_vocab_size,
        "embeddings_from_target": spec.embeddings_from_target,
        "target": asdict(facts.origin),
        "measured": {"data": ", ".join(facts.data.names), **measured(facts.figures)},
    }
    if spec.family == "mistral":
        config["sliding_window"] = None  # absent, it would mean 4096
    if facts.evaluation:
        config["evaluated"] = {"data": facts.evaluated_on, **evaluated(facts.evaluation)}
    if isinstance(spec.rope_scaling, Llama3Rope):
        config["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": spec.rope_scaling.factor,
            "low_freq_factor": spec.rope_scaling.low_freq_factor,
            "high_freq_factor": spec.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": spec.rope_scaling.original_max_position,
        }
    return config


def eos_value(ids: tuple[int, ...]) -> int | list[int]:
    """config.json writes one end id as a number, several as a list."""
    return ids[0] if len(ids) == 1 else list(ids)
