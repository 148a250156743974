"""Which layers attend the whole text and which a sliding window of it, by config.json."""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields

FULL, SLIDING = "full_attention", "sliding_attention"
SWITCHED = ("qwen2", "qwen3")
"""Families whose window is off unless ``use_sliding_window`` says otherwise."""
MIXED = (*SWITCHED, "gemma3")
"""Families whose layers may be of both kinds; transformers runs those of the others alike."""
DEFAULT_WINDOW = 4096
"""Of every family whose configuration has a window, where it names none."""
DEFAULT_PATTERN = 6
"""Of Gemma 3: every sixth layer attends the whole text."""
MOST_LAYERS = 100_000
"""More than any model has."""


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """``local_layers`` is empty or has an entry a layer; ``window`` is None where none is in use:
    also where it is as long as the context, and so hides nothing."""

    local_layers: tuple[bool, ...]
    window: int | None


def layer_kinds(fields: Fields, family: str, num_layers: int, max_position: int) -> LayerKinds:
    """The kinds of a model's layers. Raises UnsupportedModelError, CheckpointError."""
    window = _window(fields, family)
    if window is None and family != "gemma3" and fields.get("layer_types") is None:
        return LayerKinds((), None)
    if num_layers > MOST_LAYERS:  # before a table for that many layers is made
        raise CheckpointError(
            f"{fields.where}: num_hidden_layers must be at most {MOST_LAYERS}, found {num_layers}"
        )
    if family == "gemma3":
        pattern = "sliding_window_pattern"
        pattern = pattern if fields.get(pattern) is not None else f"_{pattern}"
        every = fields.integer(pattern, DEFAULT_PATTERN)
        local = tuple((layer + 1) % every != 0 for layer in range(num_layers))
    elif family in SWITCHED:
        first = fields.integer("max_window_layers", 28, minimum=0)
        local = tuple(window is not None and layer >= first for layer in range(num_layers))
    else:
        local = (window is not None,) * num_layers
    local = _listed(fields, family, local)
    if any(local) and window is None:
        raise CheckpointError(
            f"{fields.where}: layer_types has {SLIDING!r} layers, but no sliding_window is in use"
        )
    if window is not None and window >= max_position:
        window = None
    if family == "llama" and window is not None:
        raise UnsupportedModelError(
            f"{fields.where}: a sliding window of {window} positions is not supported for Llama"
        )
    # Gemma 3's local layers differ by their rotary embedding, too.
    in_use = any(local) and (window is not None or family == "gemma3")
    return LayerKinds(local, window) if in_use else LayerKinds((), None)


def _window(fields: Fields, family: str) -> int | None:
    name = "sliding_window"
    if family in SWITCHED and not fields.flag("use_sliding_window"):
        return None
    has_default = family not in ("llama", "phi3")
    if fields.get(name) is None and (fields.has(name) or not has_default):
        return None
    return fields.integer(name, DEFAULT_WINDOW)


def _listed(fields: Fields, family: str, local: tuple[bool, ...]) -> tuple[bool, ...]:
    """The kinds that layer_types lists; ``local``, the family's own rule, where there is none."""
    kinds = fields.get("layer_types")
    if kinds is None:
        return local
    if not isinstance(kinds, list) or len(kinds) != len(local):
        raise CheckpointError(
            f"{fields.where}: layer_types must list the kinds of the {len(local)} layers"
        )
    other = next((kind for kind in kinds if kind not in (FULL, SLIDING)), None)
    listed = tuple(kind == SLIDING for kind in kinds)
    if other is None and family not in MIXED and listed != local:
        other = kinds[[a != b for a, b in zip(listed, local, strict=True)].index(True)]
    if other is not None:
        raise UnsupportedModelError(
            f"{fields.where}: layer_types has {other!r}, which is not supported there for {family}"
        )
    return listed
