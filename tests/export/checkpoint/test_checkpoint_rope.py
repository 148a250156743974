"""Scaled rotary embeddings against the published rules and against transformers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError
from export.checkpoint.config import spec_from_config
from export.checkpoint.rope import (
    LinearRope,
    LongRope,
    YarnRope,
    attention_factor,
    frequencies,
    long_attention_factor,
)
from export.checkpoint.spec import ModelSpec, inv_freq
from export.graph.rope import rotary_tables
from tests.helpers.families import CONFIGS

QWEN_YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SCALED: dict[str, tuple[str, dict[str, Any]]] = {
    "yarn": ("qwen2", {"rope_scaling": QWEN_YARN}),
    "yarn-tuned": (
        "qwen2",
        {
            "rope_scaling": {
                **QWEN_YARN,
                "beta_fast": 20.0,
                "beta_slow": 2.0,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 1.2,
            }
        },
    ),
    "yarn-factor": ("qwen2", {"rope_scaling": {**QWEN_YARN, "attention_factor": 1.25}}),
    "linear": ("llama-linear", {}),
    "llama3": (
        "llama-bias",
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ),
    "longrope": (
        "phi3-long",
        {
            "partial_rotary_factor": 1.0,
            "rope_scaling": {
                "type": "su",
                "short_factor": np.linspace(1.0, 1.8, 64).tolist(),
                "long_factor": [8.0] * 64,
                "original_max_position_embeddings": 32768,
            },
        },
    ),
}
BIG = {
    "hidden_size": 512,
    "num_key_value_heads": 4,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 32768,
}


def config_of(name: str) -> dict[str, Any]:
    base, changes = SCALED[name]
    # transformers writes into what it is given, and other tests read CONFIGS.
    return copy.deepcopy({**CONFIGS[base], **BIG, **changes})


def spec_of(name: str) -> ModelSpec:
    return spec_from_config(config_of(name), "config.json")


@pytest.mark.torch
@pytest.mark.parametrize("name", SCALED)
def test_frequencies_and_attention_factor_are_those_of_transformers(name: str) -> None:
    """X5, X6. At position 6000 transformers' own float32 angles are good to 4e-4 only."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config_kind = {"qwen2": "Qwen2Config", "phi3": "Phi3Config", "llama": "LlamaConfig"}
    config = {**config_of(name), "pad_token_id": 0}
    theirs = getattr(transformers, config_kind[config.pop("model_type")])(**config)
    kind = theirs.rope_parameters["rope_type"]
    expected, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu", seq_len=6001)
    spec = spec_of(name)
    np.testing.assert_allclose(inv_freq(spec), expected.numpy(), rtol=2e-6)
    assert attention_factor(spec.rope_scaling) == pytest.approx(factor, rel=1e-6)
    cos, sin = rotary_tables(spec, 6001, np.dtype(np.float32))
    angles = 6000 * expected.double().numpy()
    np.testing.assert_allclose(cos[6000], np.cos(angles) * factor, atol=1e-3)
    np.testing.assert_allclose(sin[6000], np.sin(angles) * factor, atol=1e-3)


def test_linear_scaling_divides_positions() -> None:
    plain, scaled = frequencies(1e4, 8, None), frequencies(1e4, 8, LinearRope(2.5))
    np.testing.assert_allclose(scaled * 2.5, plain, rtol=1e-15)


def test_yarn_keeps_the_fast_and_divides_the_slow() -> None:
    """Qwen2.5's own: heads of 128, theta 1e6, factor 4 over 32,768 positions, by hand."""
    rope = YarnRope(4.0, 32.0, 1.0, 32768, 1.0, truncate=True)
    plain, scaled = frequencies(1e6, 128, None), frequencies(1e6, 128, rope)
    turns = 32768 * plain / (2 * math.pi)
    first = int(np.flatnonzero(turns >= 32)[-1])
    last = int(np.flatnonzero(turns <= 1)[0])
    np.testing.assert_allclose(scaled[: first + 1], plain[: first + 1], rtol=1e-12)
    np.testing.assert_allclose(scaled[last:], plain[last:] / 4, rtol=1e-12)
    middle = (first + last) // 2
    kept = 1 - (middle - first) / (last - first)
    assert scaled[middle] == pytest.approx(plain[middle] * (kept + (1 - kept) / 4))


def test_attention_factors() -> None:
    """Ignored, scores come out too flat: YaRN 4 multiplies them by 1.1386^2."""
    spec = spec_of("yarn")
    assert attention_factor(spec.rope_scaling) == pytest.approx(0.1 * math.log(4) + 1)
    cos, _ = rotary_tables(spec, 2, np.dtype(np.float64))
    assert cos[0].tolist() == pytest.approx([1.1386294] * 64)
    assert long_attention_factor(32.0, 4096) == pytest.approx(math.sqrt(1 + 5 / 12))
    assert long_attention_factor(1.0, 4096) == 1.0


def test_yarn_reaches_as_far_as_it_stretches() -> None:
    """People add rope_scaling to Qwen2.5's config, which says 32,768 positions still."""
    config = {**config_of("yarn"), "max_position_embeddings": 32768}
    assert spec_from_config(config, "config.json").max_position == 131072


def test_longrope_ends_where_its_other_factors_would_begin() -> None:
    """Beyond the original context every key of the text would have to be rotated anew."""
    spec = spec_of("longrope")
    assert isinstance(spec.rope_scaling, LongRope)
    assert spec.max_position == 32768
    assert spec.rope_scaling.attention_factor == pytest.approx(
        math.sqrt(1 + math.log(4) / math.log(32768))
    )


def test_phi3_calls_longrope_by_three_names() -> None:
    _, changes = SCALED["longrope"]
    found = {
        spec_from_config(
            {**config_of("longrope"), "rope_scaling": {**changes["rope_scaling"], "type": kind}},
            "config.json",
        )
        for kind in ("su", "yarn", "longrope")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 0.0}, "factor must be a number above 0"),
        ({"beta_fast": 1.0}, "beta_fast 1 must be above beta_slow 1"),
        ({"attention_factor": "high"}, "attention_factor must be a number above 0"),
        ({"truncate": 1}, "truncate must be true or false"),
    ],
)
def test_absurd_yarn_is_named(changes: dict[str, Any], message: str) -> None:
    config = {**config_of("yarn"), "rope_scaling": {**QWEN_YARN, **changes}}
    with pytest.raises(CheckpointError, match=message):
        spec_from_config(config, "config.json")


@pytest.mark.parametrize("factors", [None, "1.0", [1.0] * 63 + [-1.0], [1.0] * 63 + ["x"]])
def test_absurd_longrope_factors_are_named(factors: Any) -> None:
    config = config_of("longrope")
    config["rope_scaling"] = {"type": "longrope", "short_factor": factors}
    with pytest.raises(CheckpointError, match="short_factor"):
        spec_from_config(config, "config.json")


@pytest.mark.parametrize(("name", "theta"), [("qwen2-yarn", 1.0), ("mistral", 0.5), ("gemma3", 1)])
def test_a_theta_that_gives_no_frequencies_is_refused(name: str, theta: float) -> None:
    """Yarn divides by its logarithm."""
    field = "rope_local_base_freq" if name == "gemma3" else "rope_theta"
    with pytest.raises(CheckpointError, match="rope_theta must be above 1"):
        spec_from_config({**CONFIGS[name], field: theta}, "config.json")


def test_longrope_from_one_position_has_an_attention_factor() -> None:
    assert long_attention_factor(4.0, 1) == 1.0
