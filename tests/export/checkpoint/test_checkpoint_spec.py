from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.config import spec_from_config
from export.checkpoint.rope import Llama3Rope
from export.checkpoint.spec import ModelSpec, inv_freq

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "max_position_embeddings": 512,
    "eos_token_id": 2,
    "bos_token_id": 1,
}
QWEN3: dict[str, Any] = {
    **LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
}
ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(base: dict[str, Any], **changes: Any) -> ModelSpec:
    return spec_from_config({**base, **changes}, "config.json")


def without(base: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key not in names}


def test_llama_fields_arrive_where_they_belong() -> None:
    assert read(LLAMA, tie_word_embeddings=True) == ModelSpec(
        family="llama",
        vocab_size=320,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=50000.0,
        rope_scaling=None,
        max_position=512,
        tied_embeddings=True,
        qk_norm=False,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


def test_head_dim_is_the_configured_one_not_hidden_over_heads() -> None:
    """X1: 32 / 4 is 8, the model says 16; and 30 / 4 need not come out whole then."""
    assert read(QWEN3).head_dim == 16
    assert read(LLAMA, head_dim=16, hidden_size=30).head_dim == 16


def test_absent_head_dim_takes_the_default_of_the_family() -> None:
    assert read(LLAMA, head_dim=None).head_dim == 8
    assert read(without(QWEN3, "head_dim")).head_dim == 128
    with pytest.raises(CheckpointError, match="hidden size 30 is not a multiple of the 4"):
        read(LLAMA, hidden_size=30)


def test_qwen3_has_qk_norm_and_absent_key_heads_mean_one_each() -> None:
    assert read(QWEN3).qk_norm
    assert not read(LLAMA).qk_norm
    assert read(without(LLAMA, "num_key_value_heads")).num_kv_heads == 4


def test_several_end_tokens() -> None:
    assert read(LLAMA, eos_token_id=[2, 7, 9]).eos_token_ids == (2, 7, 9)
    assert read(LLAMA, eos_token_id=None).eos_token_ids == ()
    assert read(without(LLAMA, "bos_token_id")).bos_token_id is None


def test_model_type_alone_names_the_architecture() -> None:
    assert read(without(QWEN3, "architectures")).family == "qwen3"


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_llama3_rope_is_read_from_both_fields(field: str) -> None:
    """X6: transformers 5 renamed rope_scaling; a reader of one name drops the scaling silently."""
    expected = Llama3Rope(8.0, 1.0, 4.0, 8192)
    assert read(LLAMA, **{field: ROPE}).rope_scaling == expected


def test_older_rope_spelling_is_read() -> None:
    older = {**without(ROPE, "rope_type"), "type": "llama3"}
    assert read(LLAMA, rope_scaling=older).rope_scaling == Llama3Rope(8.0, 1.0, 4.0, 8192)


def test_theta_inside_rope_parameters() -> None:
    """X6: transformers 5 keeps theta there alone; the default 10000 would be wrong."""
    base = without(LLAMA, "rope_theta")
    spec = read(base, rope_parameters={"rope_type": "default", "rope_theta": 500000.0})
    assert (spec.rope_theta, spec.rope_scaling) == (500000.0, None)
    assert read(base).rope_theta == 10000.0


def test_contradicting_rope_fields_are_refused() -> None:
    with pytest.raises(CheckpointError, match="rope_theta is 50000 and 10000"):
        read(LLAMA, rope_parameters={"rope_theta": 10000.0})
    with pytest.raises(CheckpointError, match="contradict"):
        read(LLAMA, rope_parameters=ROPE, rope_scaling={**ROPE, "factor": 2.0})


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["dynamic", "proportional", "spiral"])
def test_unknown_rope_type_is_refused_by_name(field: str, kind: str) -> None:
    """X6: a scaling treated as plain rope is right for short prompts only."""
    with pytest.raises(UnsupportedModelError, match=f"rope type '{kind}'"):
        read(LLAMA, **{field: {"rope_type": kind, "factor": 4.0}})


def test_rope_scaling_without_a_type_is_not_taken_for_plain() -> None:
    with pytest.raises(CheckpointError, match="a factor, but no rope_type"):
        read(LLAMA, rope_scaling={"factor": 4.0})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}, "MixtralForCausalLM"),
        ({"model_type": "mistral"}, "model_type mistral"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'gptq'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "'sliding_attention'"),
        ({"sliding_window": 128}, "sliding window of 128"),
    ],
)
def test_unsupported_models_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named) as error:
        read(LLAMA, **changes)
    assert "\n" not in str(error.value)


def test_no_architecture_at_all_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no architecture"):
        read(without(LLAMA, "architectures", "model_type"))


def test_sliding_window_that_is_off_or_longer_than_the_context_is_accepted() -> None:
    """Qwen3 configs carry a window that use_sliding_window turns off."""
    read(QWEN3, use_sliding_window=False, sliding_window=128)
    read(QWEN3, use_sliding_window=True, sliding_window=128, max_window_layers=2)
    read(QWEN3, use_sliding_window=True, sliding_window=512, max_window_layers=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": "32"}, "hidden_size must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number >= 1"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key heads"),
        ({"head_dim": 7}, "head_dim 7 must be even"),
        ({"num_hidden_layers": 10**400}, "num_hidden_layers must be a whole number of at most 64"),
        ({"rope_theta": 10**400}, "rope_theta must be a number above 0 that float32 holds"),
        ({"rms_norm_eps": 1e300}, "rms_norm_eps must be a number above 0 that float32 holds"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number above 0"),
        ({"rope_theta": -1.0}, "rope_theta must be a number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": 320}, r"eos_token_id must be a token id in \[0, 320\)"),
        ({"bos_token_id": -1}, "bos_token_id must be a token id"),
        ({"draft_vocab_size": 321}, "draft_vocab_size 321 is larger than vocab_size 320"),
        ({"draft_vocab_size": 64, "tie_word_embeddings": True}, "tie_word_embeddings contradicts"),
        ({"rope_scaling": {**ROPE, "high_freq_factor": 1.0}}, "high_freq_factor 1 must be above"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "factor is missing"),
    ],
)
def test_missing_and_absurd_values_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        read(LLAMA, **changes)
    assert str(error.value).startswith("config.json")


def test_draft_fields() -> None:
    spec = read(LLAMA, draft_vocab_size=64, embeddings_from_target=True)
    assert (spec.draft_vocab_size, spec.embeddings_from_target) == (64, True)


def test_plain_inv_freq_is_powers_of_theta() -> None:
    frequencies = inv_freq(read(LLAMA, rope_theta=10000.0))
    assert frequencies.dtype == np.float64
    np.testing.assert_allclose(frequencies, [1.0, 0.1, 0.01, 0.001], rtol=1e-12)


def by_wavelength(spec: ModelSpec) -> list[float]:
    """Llama 3's rule as its authors state it: by wavelength, one frequency at a time."""
    rope = spec.rope_scaling
    assert rope is not None
    longest_kept = rope.original_max_position / rope.high_freq_factor
    shortest_divided = rope.original_max_position / rope.low_freq_factor
    found = []
    for index in range(spec.head_dim // 2):
        frequency = spec.rope_theta ** (-2 * index / spec.head_dim)
        wavelength = 2 * np.pi / frequency
        if wavelength < longest_kept:
            found.append(frequency)
        elif wavelength > shortest_divided:
            found.append(frequency / rope.factor)
        else:
            smooth = (rope.original_max_position / wavelength - rope.low_freq_factor) / (
                rope.high_freq_factor - rope.low_freq_factor
            )
            found.append((1 - smooth) * frequency / rope.factor + smooth * frequency)
    return found


@given(
    theta=st.sampled_from([10000.0, 500000.0]),
    head_dim=st.sampled_from([8, 64, 128]),
    factor=st.sampled_from([2.0, 8.0, 32.0]),
    original=st.sampled_from([64, 8192]),
)
def test_llama3_inv_freq_follows_the_published_rule(
    theta: float, head_dim: int, factor: float, original: int
) -> None:
    """X5: scaling ignored is fine for short texts and loops on long ones."""
    spec = read(
        LLAMA,
        rope_theta=theta,
        head_dim=head_dim,
        rope_scaling={**ROPE, "factor": factor, "original_max_position_embeddings": original},
    )
    np.testing.assert_allclose(inv_freq(spec), by_wavelength(spec), rtol=1e-12)


def test_llama3_inv_freq_of_llama_3_1() -> None:
    """Head size 128, theta 5e5, factor 8: ends of the range and one blended value, by hand."""
    spec = read(LLAMA, rope_theta=500000.0, head_dim=128, rope_scaling=ROPE)
    frequencies = inv_freq(spec)
    assert frequencies[0] == 1.0
    plain = 500000.0 ** (-np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(frequencies[-20:], plain[-20:] / 8, rtol=1e-12)
    # Frequency 32 turns 8192 * 5e5^-0.5 / (2 pi) = 1.8438 times: kept part (1.8438 - 1) / 3.
    kept = (8192 * 500000.0**-0.5 / (2 * np.pi) - 1) / 3
    assert kept == pytest.approx(0.2813, abs=1e-4)
    assert frequencies[32] == pytest.approx(500000.0**-0.5 * (kept + (1 - kept) / 8), rel=1e-12)


@pytest.mark.parametrize("block", ["yarn", 5, True, [1]])
def test_a_rope_block_that_is_no_object_is_refused(block: object) -> None:
    """Passed over, the model would be built with the wrong positions."""
    for name in ("rope_scaling", "rope_parameters"):
        with pytest.raises(CheckpointError, match=f"{name} must be an object"):
            read(LLAMA, **{name: block})
