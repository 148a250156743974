"""Tiny random checkpoints of every model family, with a config.json as model hubs have them.

A config here is written from what the families' own repositories publish; the weights follow from
the shapes that our reader expects, and transformers has to find each of them in its place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from export.checkpoint.config import spec_from_config
from export.checkpoint.weights import EMBEDDING, weight_shapes
from tests.helpers.checkpoints import write_safetensors
from tests.helpers.tiny_model import BOS_ID, CHAT_TEMPLATE, EOS_ID, byte_level_tokenizer

WINDOW = 12
_COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"}
_SHORT = [1.0, 1.05, 1.1, 1.25, 1.4, 1.7]


def _config(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **_COMMON, **changes}


def _gemma3(**changes: Any) -> dict[str, Any]:
    config = _config(
        "Gemma3ForCausalLM",
        "gemma3_text",
        num_hidden_layers=3,
        head_dim=32,  # not 64 / 4
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=24,
        rope_theta=1000000.0,
        rope_local_base_freq=10000,
        sliding_window=WINDOW,
        sliding_window_pattern=3,
        attn_logit_softcapping=None,
        **{"final_logit_softcapping": None, **changes},
    )
    for absent in ("hidden_act", "tie_word_embeddings"):
        del config[absent]
    return config


CONFIGS: dict[str, dict[str, Any]] = {
    "llama-bias": _config("LlamaForCausalLM", "llama", attention_bias=True),
    "llama-linear": _config(
        "LlamaForCausalLM", "llama", rope_scaling={"type": "linear", "factor": 2.5}
    ),
    "qwen2": _config("Qwen2ForCausalLM", "qwen2", tie_word_embeddings=True),
    "qwen2-yarn": _config("Qwen2ForCausalLM", "qwen2", rope_scaling=_YARN),
    "qwen2-window": _config(
        "Qwen2ForCausalLM",
        "qwen2",
        use_sliding_window=True,
        sliding_window=WINDOW,
        max_window_layers=1,
    ),
    "qwen3-yarn": _config(
        "Qwen3ForCausalLM",
        "qwen3",
        head_dim=32,
        attention_bias=True,
        rope_theta=None,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 1000000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
        },
    ),
    "mistral": _config("MistralForCausalLM", "mistral", sliding_window=WINDOW),
    "mistral-plain": _config("MistralForCausalLM", "mistral", sliding_window=None, head_dim=24),
    "gemma3": _gemma3(),
    "gemma3-linear-softcap": _gemma3(
        rope_scaling={"rope_type": "linear", "factor": 8.0}, final_logit_softcapping=3.0
    ),
    "phi3": _config(
        "Phi3ForCausalLM",
        "phi3",
        pad_token_id=EOS_ID,
        num_key_value_heads=4,  # each query head has its own keys
        sliding_window=WINDOW + 1,
        rope_scaling=None,
    ),
    "phi3-long": _config(
        "Phi3ForCausalLM",
        "phi3",
        pad_token_id=EOS_ID,
        sliding_window=2048,
        partial_rotary_factor=0.75,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        original_max_position_embeddings=256,
        rope_scaling={"type": "longrope", "short_factor": _SHORT, "long_factor": [4.0] * 6},
    ),
}
"""By a name for people: a family, and what is special."""


def make_model(
    folder: Path, name: str, *, seed: int = 0, dtype: str = "F32", **changes: Any
) -> Path:
    """Write the checkpoint ``name`` of ``CONFIGS`` to ``folder`` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS[name], **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", family_weights(config, seed), dtype)
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer(config["vocab_size"]))
    document = {"chat_template": CHAT_TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def family_weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Float32 weights of a config, sized so that logits differ clearly."""
    rng = np.random.default_rng(seed)
    spec = spec_from_config(config, "config.json")
    weights = {}
    for name, shape in weight_shapes(spec).items():
        if name.endswith("norm.weight"):
            values = rng.uniform(0.7, 1.3, shape) - spec.norms_add_one
        elif name.endswith(".bias"):
            values = rng.normal(0.0, 0.5, shape)
        elif name == EMBEDDING:
            values = rng.normal(0.0, 1.0 / spec.embedding_scale, shape)
        else:
            values = rng.normal(0.0, 1.5 / np.sqrt(shape[1]), shape)
        weights[name] = values.astype(np.float32)
    return weights
