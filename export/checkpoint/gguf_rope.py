"""The rotary embedding of a GGUF file: metadata, and divisors of frequencies stored as tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields
from export.checkpoint.rope import (
    LinearRope,
    Llama3Rope,
    LongRope,
    RopeScaling,
    YarnRope,
    long_attention_factor,
    yarn_attention_factor,
)
from export.checkpoint.spec import ModelSpec, inv_freq

LLAMA3_FACTORS = "rope_freqs.weight"
SHORT_FACTORS, LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
FACTORS = (LLAMA3_FACTORS, SHORT_FACTORS, LONG_FACTORS)

Divisors = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RopeFactors:
    """Divisors of the frequencies [rotated dimensions / 2], None where the file has none:
    Llama 3's scaling, and LongRoPE's within the original context."""

    llama3: Divisors | None
    short: Divisors | None


def shortest(value: float) -> float:
    """GGUF keeps reals as float32; give back the decimal that was meant (1e-05)."""
    return float(str(np.float32(value)))


def read_rope(spec: ModelSpec, fields: Fields, arch: str, factors: RopeFactors) -> ModelSpec:
    """``spec`` with the scaling of its positions, and as many positions as that reaches.

    Raises UnsupportedModelError, CheckpointError.
    """
    for name, divisors in ((LLAMA3_FACTORS, factors.llama3), (SHORT_FACTORS, factors.short)):
        if divisors is not None:
            _check_divisors(spec, name, divisors, fields.where)
    prefix = f"{arch}.rope.scaling"
    factor, older = f"{prefix}.factor", f"{arch}.rope.scale_linear"
    if fields.has(older) and not fields.has(factor):
        factor = older
    # llama.cpp takes a factor of no stated type for a linear one, and 0 for none.
    is_scaled = bool(fields.get(factor)) and fields.number(factor) != 1.0
    kind = fields.text(f"{prefix}.type", "linear" if is_scaled else "none")
    original = fields.integer(f"{prefix}.original_context_length", spec.max_position)
    reach, scaling = spec.max_position, None
    if factors.short is not None:
        scaling = _long_rope(spec, fields, prefix, original, factors.short)
        reach = min(reach, original)
    elif kind == "linear":
        scaling = LinearRope(shortest(fields.number(factor)))
    elif kind == "yarn":
        scaling = _yarn(fields, prefix, original)
        reach = max(reach, int(scaling.factor * original))
    elif kind != "none":
        raise UnsupportedModelError(
            f"{fields.where}: rope scaling type {kind!r} is not supported, "
            "only 'none', 'linear', 'yarn' and stored factors are"
        )
    scaled = replace(spec, rope_scaling=scaling, max_position=reach)
    if factors.llama3 is None:
        return scaled
    if scaling is not None:
        raise UnsupportedModelError(
            f"{fields.where}: {LLAMA3_FACTORS} beside another rope scaling is not supported"
        )
    return _with_llama3(scaled, factors.llama3, fields.where)


def _check_divisors(spec: ModelSpec, name: str, divisors: Divisors, where: str) -> None:
    expected = inv_freq(spec).shape
    if divisors.shape != expected:
        raise CheckpointError(
            f"{where}: {name} has shape {list(divisors.shape)}, expected {list(expected)}"
        )
    if not np.all(divisors > 0.0):
        raise CheckpointError(f"{where}: {name} holds values that are not above 0")


def _long_rope(
    spec: ModelSpec, fields: Fields, prefix: str, original: int, divisors: Divisors
) -> RopeScaling:
    default = long_attention_factor(spec.max_position / original, original)
    attention = fields.number(f"{prefix}.attn_factor", default)
    return LongRope(tuple(map(shortest, divisors.tolist())), attention)


def _yarn(fields: Fields, prefix: str, original: int) -> YarnRope:
    for name, plain in (("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0), ("attn_factor", 1.0)):
        if fields.number(f"{prefix}.{name}", plain) != plain:
            raise UnsupportedModelError(
                f"{fields.where}: {prefix}.{name} other than {plain:g} is not supported"
            )
    if fields.has(f"{prefix}.yarn_log_multiplier"):
        raise UnsupportedModelError(
            f"{fields.where}: {prefix}.yarn_log_multiplier is not supported"
        )
    factor = shortest(fields.number(f"{prefix}.factor"))
    return YarnRope(
        factor=factor,
        beta_fast=shortest(fields.number(f"{prefix}.yarn_beta_fast", 32.0)),
        beta_slow=shortest(fields.number(f"{prefix}.yarn_beta_slow", 1.0)),
        original_max_position=original,
        attention_factor=yarn_attention_factor(factor),
        truncate=True,
    )


def _with_llama3(spec: ModelSpec, divisors: Divisors, where: str) -> ModelSpec:
    """Recover Llama 3's scaling from the divisors that llama.cpp stores in its place.

    Its divisor for the longest wavelength is the factor; the other three parameters have been the
    same in every Llama 3 release. Anything these do not reproduce is refused.
    """
    if np.all(divisors == 1.0):
        return spec
    rope = Llama3Rope(
        factor=shortest(float(divisors[-1])),
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=8192,
    )
    scaled = replace(spec, rope_scaling=rope)
    if not np.allclose(inv_freq(spec) / divisors, inv_freq(scaled), rtol=1e-5, atol=0.0):
        raise UnsupportedModelError(
            f"{where}: {LLAMA3_FACTORS} is not Llama 3's rope scaling "
            f"(factor {rope.factor:g}, 1, 4, 8192), which is the only one supported"
        )
    return scaled
