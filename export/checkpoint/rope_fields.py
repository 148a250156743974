"""The rotary embedding of a config.json: rope_parameters (transformers 5) or rope_scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields
from export.checkpoint.layer_kinds import FULL, SLIDING
from export.checkpoint.rope import (
    LinearRope,
    Llama3Rope,
    LongRope,
    RopeScaling,
    YarnRope,
    long_attention_factor,
    yarn_attention_factor,
)

ORIGINAL = "original_max_position_embeddings"
KINDS = ("default", "linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class RopeFields:
    """``local_theta`` is that of Gemma 3's local layers, None elsewhere; ``rotary_dim`` is None
    where whole heads are rotated; ``max_position`` is how far the positions reach."""

    theta: float
    scaling: RopeScaling | None
    local_theta: float | None
    rotary_dim: int | None
    max_position: int


def read_rope(
    fields: Fields, family: str, default_theta: float, head_dim: int, max_position: int
) -> RopeFields:
    """Theta, scaling and reach of the positions, from whichever names a config.json uses.

    Raises UnsupportedModelError for a kind of scaling that is not one of ``KINDS``, and
    CheckpointError where two fields contradict each other or a value is absurd.
    """
    new, old = fields.block("rope_parameters"), fields.block("rope_scaling")
    local_theta = None
    if family == "gemma3":
        new, local_theta = _by_layer_type(fields, new)
    reader = _Reader(fields, family, head_dim, max_position)
    blocks = [block for block in (new, old) if block]
    if len(blocks) == 2 and reader.scaling(new) != reader.scaling(old):
        raise CheckpointError(
            f"{fields.where}: rope_parameters and rope_scaling contradict each other"
        )
    block = blocks[0] if blocks else {}
    inner = Fields(block, f"{fields.where} (rope)")
    theta = fields.number("rope_theta", inner.number("rope_theta", default_theta))
    if inner.number("rope_theta", theta) != theta:
        raise CheckpointError(
            f"{fields.where}: rope_theta is {theta:g} and {inner.number('rope_theta'):g} "
            "in rope_parameters"
        )
    scaling = reader.scaling(block)
    if isinstance(scaling, YarnRope):
        # Configs are stretched by adding a rope_scaling, often without a new maximum.
        max_position = max(max_position, int(scaling.factor * scaling.original_max_position))
    if isinstance(scaling, LongRope):
        max_position = min(max_position, reader.original(inner))
    size = reader.rotated(inner)
    return RopeFields(theta, scaling, local_theta, None if size == head_dim else size, max_position)


def _by_layer_type(fields: Fields, block: Mapping[str, object]) -> tuple[dict[str, object], float]:
    """Gemma 3: the parameters of full attention, and theta of the sliding window's layers."""
    nested = Fields(block, f"{fields.where} (rope_parameters)")
    is_nested = any(isinstance(value, Mapping) for value in block.values())
    local_block = nested.block(SLIDING) if is_nested else {}
    local = Fields(local_block, f"{fields.where} (rope of {SLIDING})")
    kind = local.text("rope_type", "default")
    if kind != "default":
        raise UnsupportedModelError(
            f"{fields.where}: rope type {kind!r} of {SLIDING} layers is not supported"
        )
    theta = local.number("rope_theta", fields.number("rope_local_base_freq", 10000.0))
    return (nested.block(FULL) if is_nested else dict(block)), theta


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads one block of rope parameters."""

    fields: Fields
    family: str
    head_dim: int
    max_position: int

    def original(self, inner: Fields) -> int:
        """Positions that the model was trained on before it was stretched. A field outside the
        block outweighs it, as in transformers."""
        default = 4096 if self.family == "phi3" else self.max_position
        return self.fields.integer(ORIGINAL, inner.integer(ORIGINAL, default))

    def rotated(self, inner: Fields) -> int:
        """Dimensions of a head that are rotated."""
        name = "partial_rotary_factor"
        share = inner.number(name, self.fields.number(name, 1.0))
        if share != 1.0 and self.family != "phi3":
            raise UnsupportedModelError(
                f"{self.fields.where}: {name} is not supported for {self.family}"
            )
        return int(self.head_dim * share)

    def scaling(self, block: Mapping[str, object]) -> RopeScaling | None:
        where = f"{self.fields.where} (rope)"
        inner = Fields(block, where)
        if any(isinstance(value, Mapping) for value in block.values()):
            raise UnsupportedModelError(
                f"{self.fields.where}: rope parameters per layer type are not supported "
                f"for {self.family}"
            )
        self.rotated(inner)
        kind = inner.text("rope_type", inner.text("type", "" if "factor" in block else "default"))
        if kind == "su" or (kind == "yarn" and self.family == "phi3"):
            kind = "longrope"  # Phi-3's older names for it
        match kind:
            case "default":
                return None
            case "linear":
                return LinearRope(inner.number("factor"))
            case "llama3":
                return self._llama3(inner)
            case "yarn":
                return self._yarn(inner)
            case "longrope":
                return self._longrope(inner)
        if not kind:
            raise CheckpointError(
                f"{where}: a factor, but no rope_type that says of what; "
                f"it must be one of {', '.join(KINDS)}"
            )
        raise UnsupportedModelError(
            f"{self.fields.where}: rope type {kind!r} is not supported, only "
            f"{', '.join(KINDS[:-1])} and {KINDS[-1]} are"
        )

    def _llama3(self, inner: Fields) -> Llama3Rope:
        rope = Llama3Rope(
            factor=inner.number("factor"),
            low_freq_factor=inner.number("low_freq_factor"),
            high_freq_factor=inner.number("high_freq_factor"),
            original_max_position=self.original(inner),
        )
        if rope.high_freq_factor <= rope.low_freq_factor:
            raise CheckpointError(
                f"{self.fields.where}: high_freq_factor {rope.high_freq_factor:g} must be above "
                f"low_freq_factor {rope.low_freq_factor:g}"
            )
        return rope

    def _yarn(self, inner: Fields) -> YarnRope:
        original = self.original(inner)
        factor = inner.number("factor", self.max_position / original)
        attention = yarn_attention_factor(factor)
        scales = ("mscale", "mscale_all_dim")
        if all(inner.get(name) for name in scales):
            own, every = (1.0 + inner.number(name) * (attention - 1.0) for name in scales)
            attention = own / every
        rope = YarnRope(
            factor=factor,
            beta_fast=inner.number("beta_fast", 32.0),
            beta_slow=inner.number("beta_slow", 1.0),
            original_max_position=original,
            attention_factor=inner.number("attention_factor", attention),
            truncate=inner.flag("truncate", True),
        )
        if rope.beta_fast <= rope.beta_slow:
            raise CheckpointError(
                f"{inner.where}: beta_fast {rope.beta_fast:g} must be above "
                f"beta_slow {rope.beta_slow:g}"
            )
        return rope

    def _longrope(self, inner: Fields) -> LongRope:
        original = self.original(inner)
        factors = inner.numbers("short_factor")
        expected = self.rotated(inner) // 2
        if len(factors) != expected:
            raise CheckpointError(
                f"{inner.where}: short_factor has {len(factors)} numbers, expected {expected}"
            )
        factor = inner.number("factor", self.max_position / original)
        attention = long_attention_factor(factor, original)
        return LongRope(factors, inner.number("attention_factor", attention))
