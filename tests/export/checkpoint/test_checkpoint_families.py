"""What each family's config.json says, and what it leaves unsaid."""

from __future__ import annotations

from typing import Any

import pytest

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.config import FAMILIES, SUPPORTED, spec_from_config
from export.checkpoint.spec import GELU_TANH, ModelSpec
from export.checkpoint.weights import weight_shapes
from tests.helpers.families import CONFIGS, WINDOW


def read(name: str, **changes: Any) -> ModelSpec:
    return spec_from_config({**CONFIGS[name], **changes}, "config.json")


def without(name: str, *fields: str) -> ModelSpec:
    config = {key: value for key, value in CONFIGS[name].items() if key not in fields}
    return spec_from_config(config, "config.json")


def test_every_family_is_read_and_named_where_another_is_refused() -> None:
    assert {read(name).family for name in CONFIGS} == {family.name for family in FAMILIES}
    with pytest.raises(UnsupportedModelError, match="Gemma2ForCausalLM") as error:
        read("gemma3", architectures=["Gemma2ForCausalLM"], model_type="gemma2")
    assert SUPPORTED in str(error.value)


def test_gemma_with_eyes_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedModelError, match="Gemma3ForConditionalGeneration"):
        read("gemma3", architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3")


def test_gemma_constants() -> None:
    spec = read("gemma3-linear-softcap")
    assert spec.score_scale == pytest.approx(24**-0.5)
    assert spec.embedding_scale == 8.0
    assert (spec.activation, spec.logit_softcap) == (GELU_TANH, 3.0)
    assert spec.tied_embeddings, "Gemma ties where its config says nothing"
    assert spec.norms_add_one
    assert (spec.rope_theta, spec.local_rope_theta) == (1e6, 1e4)


def test_both_spellings_of_gemma_positions_are_one() -> None:
    """X6: transformers 5 writes both rotary embeddings into one field."""
    newer = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
    }
    removed = {"rope_theta": None, "rope_local_base_freq": None, "rope_scaling": None}
    read_newer = read("gemma3-linear-softcap", rope_parameters=newer, **removed)
    assert read_newer == read("gemma3-linear-softcap")


def test_gemma_layers_by_list_and_by_pattern() -> None:
    assert read("gemma3").local_layers == (True, True, False)
    listed = ["full_attention", "sliding_attention", "sliding_attention"]
    assert read("gemma3", layer_types=listed).local_layers == (False, True, True)
    assert without("gemma3", "sliding_window_pattern").local_layers == (True, True, True)
    hub = read("gemma3", sliding_window_pattern=None, _sliding_window_pattern=2)
    assert hub.local_layers == (True, False, True)


def test_a_gemma_window_that_hides_nothing_keeps_the_local_positions() -> None:
    spec = read("gemma3", sliding_window=512)
    assert (spec.window, spec.local_layers) == (None, (True, True, False))


def test_windows_by_the_rules_of_each_family() -> None:
    """X3: a window that is dropped is right for short texts only."""
    assert read("mistral").local_layers == (True, True)
    assert read("mistral").window == WINDOW
    assert read("mistral-plain").window is None
    assert read("qwen2-window").local_layers == (False, True)
    assert read("qwen2-window", max_window_layers=2).window is None
    assert read("qwen2-window", use_sliding_window=False).window is None
    listed = ["sliding_attention", "full_attention"]
    assert read("qwen2-window", layer_types=listed).local_layers == (True, False)
    assert read("phi3").window == WINDOW + 1
    assert without("phi3", "sliding_window").window is None


def test_an_absent_window_takes_the_default_of_the_family_and_null_takes_none() -> None:
    """Mistral 7B v0.1 and v0.2 differ in this alone."""
    changes = {"max_position_embeddings": 32768}
    absent = {k: v for k, v in CONFIGS["mistral"].items() if k != "sliding_window"}
    assert spec_from_config({**absent, **changes}, "config.json").window == 4096
    assert read("mistral", sliding_window=None, **changes).window is None


def test_a_window_as_long_as_the_context_is_not_in_use() -> None:
    assert read("mistral", sliding_window=512).local_layers == ()
    assert read("phi3-long").window is None, "2048 positions of 256"


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("mistral", {"layer_types": ["sliding_attention", "full_attention"]}, "'full_attention'"),
        ("mistral", {"attention_bias": True}, "attention_bias"),
        ("phi3", {"attention_bias": True}, "attention_bias"),
        ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "'linear_attention'"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation 'gelu'"),
        ("qwen2", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("qwen2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "yarn", "factor": 2.0}}},
            "rope type 'yarn' of sliding_attention",
        ),
    ],
)
def test_what_has_no_place_is_refused_by_name(
    name: str, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=named) as error:
        read(name, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen2", {"layer_types": ["full_attention"]}, "must list the kinds of the 2 layers"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 2}, "no sliding_window is in use"),
        ("gemma3", {"num_hidden_layers": 10**9}, "num_hidden_layers must be at most"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be"),
        ("gemma3", {"final_logit_softcapping": -1.0}, "final_logit_softcapping must be"),
        ("phi3-long", {"partial_rotary_factor": 0.5}, "short_factor has 6 numbers, expected 4"),
        ("phi3-long", {"partial_rotary_factor": 0.3}, "short_factor has 6 numbers"),
        ("phi3", {"partial_rotary_factor": 0.07}, "1 rotated dimensions of a head of 16"),
    ],
)
def test_absurd_values_are_named(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(name, **changes)


def test_fused_projections_and_biases_are_expected_where_a_family_has_them() -> None:
    """X2: a weight that is not expected is refused, so the table has to know each of them."""
    phi = weight_shapes(read("phi3"))
    assert phi["model.layers.1.self_attn.qkv_proj.weight"] == (3 * 64, 64)
    assert phi["model.layers.1.mlp.gate_up_proj.weight"] == (2 * 96, 64)
    assert not any("q_proj" in name for name in phi)
    biases = {n.split(".", 3)[3] for n in weight_shapes(read("qwen2")) if n.endswith("bias")}
    assert biases == {f"self_attn.{part}_proj.bias" for part in "qkv"}
    assert "model.layers.0.self_attn.o_proj.bias" in weight_shapes(read("llama-bias"))


@pytest.mark.parametrize(("name", "expected"), [("mistral", 8), ("gemma3", 4), ("llama-bias", 64)])
def test_absent_key_heads_take_the_default_of_the_family(name: str, expected: int) -> None:
    """transformers gives a Mistral 8; null means one for each query head in all families."""
    config = {**CONFIGS[name], "num_attention_heads": 64, "head_dim": 16}
    assert spec_from_config({**config, "num_key_value_heads": None}, "c").num_kv_heads == 64
    del config["num_key_value_heads"]
    assert spec_from_config(config, "c").num_kv_heads == expected
