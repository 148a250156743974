"""The shapes an engine is compiled for, as TensorRT optimisation profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.errors import UsageError
from engines.profiles import ShapeProfile, Span
from engines.tensors import TensorSpec

Shape = tuple[int, ...]


def profile_shapes(
    profile: ShapeProfile, inputs: Sequence[TensorSpec]
) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Least, typical and largest shape of every input in ``profile``.

    UsageError when the profile contradicts itself or the inputs: more logits than tokens, or more
    tokens or attended rows than the cache has rows.
    """
    _check(profile, inputs)
    return {
        spec.name: (
            _shape(spec, profile, "least"),
            _shape(spec, profile, "typical"),
            _shape(spec, profile, "most"),
        )
        for spec in inputs
    }


def add_profile(
    builder: Any, config: Any, profile: ShapeProfile, inputs: Sequence[TensorSpec]
) -> None:
    """Add ``profile`` to a builder's configuration; its number is its place in order."""
    native = builder.create_optimization_profile()
    for name, (least, typical, most) in profile_shapes(profile, inputs).items():
        native.set_shape(name, least, typical, most)
    if config.add_optimization_profile(native) < 0:
        raise UsageError(f"profile {profile.name} was refused by TensorRT")


def _shape(spec: TensorSpec, profile: ShapeProfile, end: str) -> Shape:
    return tuple(
        dim if isinstance(dim, int) else getattr(_span(profile, dim), end) for dim in spec.shape
    )


def _span(profile: ShapeProfile, symbol: str) -> Span:
    try:
        return profile.span(symbol)
    except KeyError:
        raise UsageError(f"no profile bounds the dimension {symbol}; known are B T R L") from None


def _check(profile: ShapeProfile, inputs: Sequence[TensorSpec]) -> None:
    if profile.logits.most > profile.tokens.most:
        raise UsageError(
            f"profile {profile.name} asks for {profile.logits.most} logits of "
            f"{profile.tokens.most} tokens"
        )
    for spec in inputs:
        rows = spec.shape[2] if len(spec.shape) == 4 else None  # of a cache; a mask's third is T
        if not isinstance(rows, int):
            continue
        for what, most in (
            (f"attends up to {profile.length.most} rows", profile.length.most),
            (f"writes up to {profile.tokens.most} rows", profile.tokens.most),
        ):
            if most > rows:
                raise UsageError(f"profile {profile.name} {what}, the cache {spec.name} has {rows}")
