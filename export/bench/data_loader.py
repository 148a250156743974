"""Inputs that an engine's graph can work with, from nothing but their names and shapes.

For polygraphy's command line, which would fill them with noise (rows attended by nobody, cache
rows and positions out of range)::

    polygraphy run model.onnx --onnxrt --data-loader-script export/bench/data_loader.py:verify

``step``, ``verify`` (also ``load_data``), ``prompt`` and ``branch`` are the kinds of call; sizes
that a model leaves open are those of the kind. The file stands alone: numpy, nothing of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

Shape = Iterable[object]
Metadata = Mapping[str, tuple[object, Shape]]
"""(element type, shape) of each input; a dimension that is no positive number is open."""

DIMENSIONS = {
    "tokens": ("B", "T"),
    "positions": ("B", "T"),
    "write_at": ("B",),
    "mask": ("B", "1", "T", "L"),
    "logit_rows": ("B", "R"),
    "num_draft": ("B",),
}
CACHE_DIMENSIONS = ("B", "Hkv", "L", "D")
ELEMENT_TYPES = ("bool", "int32", "int64", "float16", "float32")
NUM_IDS = 256
"""Token ids that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Call:
    """B slots with ``text`` tokens in their caches get T more each, and logits for the last R.

    L = ``rows`` cache rows are bound; the text begins at row ``scratch``. The tokens follow it, or
    are ``branches``: side by side from row 0 on, each attending the text and itself.
    """

    batch: int
    tokens: int
    logits: int
    rows: int
    text: int
    scratch: int = 0
    branches: bool = False

    def fit(self, metadata: Metadata) -> Call:
        """The same call with the sizes that the inputs have already."""
        sizes = {"B": self.batch, "T": self.tokens, "R": self.logits, "L": self.rows}
        cache_rows = []
        for name, (_, shape) in metadata.items():
            found = [_fixed(size) for size in shape]
            if name.startswith("kv."):
                cache_rows.append(found[2])
            elif name in DIMENSIONS:
                named = zip(DIMENSIONS[name], found, strict=True)
                sizes |= {dim: size for dim, size in named if size is not None}
        rows = min([sizes["L"], *filter(None, cache_rows)])
        tokens = min(sizes["T"], rows)
        scratch = max(self.scratch, tokens) if self.branches else self.scratch
        new_rows = 0 if self.branches else tokens
        return replace(
            self,
            batch=sizes["B"],
            tokens=tokens,
            logits=min(sizes["R"], tokens),
            rows=rows,
            text=max(0, min(self.text, rows - scratch - new_rows)),
            scratch=min(scratch, rows),
        )


STEP = Call(batch=1, tokens=1, logits=1, rows=64, text=8)
VERIFY = replace(STEP, tokens=5, logits=5)
PROMPT = replace(STEP, tokens=64, rows=128)
BRANCH = replace(STEP, tokens=8, logits=8, branches=True)


def feeds(metadata: Metadata, call: Call, seed: int = 0) -> dict[str, np.ndarray]:
    """One array for each input. Equal arguments give equal arrays.

    The caches hold random rows, finite throughout: what a mask hides is still multiplied.
    Raises ValueError for an input that is not part of the graph's border, or of another type
    (bfloat16).
    """
    sizes = {"B": call.batch, "T": call.tokens, "R": call.logits, "L": call.rows}
    rng = np.random.default_rng(seed)
    values = _border(call, rng)
    arrays = {}
    for name, (dtype, shape) in metadata.items():
        kind = _numpy(name, dtype)
        if name in values:
            arrays[name] = np.ascontiguousarray(values[name], dtype=kind)
        elif name.startswith("kv."):
            dims = zip(map(_fixed, shape), CACHE_DIMENSIONS, strict=True)
            full = [size or sizes[dim] for size, dim in dims]
            arrays[name] = rng.standard_normal(full, dtype=np.float32).astype(kind)
        else:
            raise ValueError(f"{name!r} is no input of a draft or target graph")
    return arrays


def _border(call: Call, rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch, width, text = call.batch, call.tokens, call.text
    rows, index = np.arange(call.rows), np.arange(width)
    in_text = rows >= call.scratch
    if call.branches:
        first, positions = 0, np.full(width, text)
        mask = (rows < call.scratch + text) & in_text | (rows == index[:, None])  # [T, L]
    else:
        first, positions = call.scratch + text, text + index
        mask = (rows <= first + index[:, None]) & in_text
    return {
        "tokens": rng.integers(0, NUM_IDS, (batch, width)),
        "positions": np.broadcast_to(positions, (batch, width)),
        "write_at": np.full(batch, first),
        "mask": np.broadcast_to(mask, (batch, 1, *mask.shape)),
        "logit_rows": np.broadcast_to(index[width - call.logits :], (batch, call.logits)),
        "num_draft": np.full(batch, call.logits - 1),
    }


def _numpy(name: str, dtype: object) -> np.dtype:
    if str(dtype) not in ELEMENT_TYPES:  # numpy knows bfloat16 if some other package has added it
        raise ValueError(f"{name} has element type {dtype}, not one of {', '.join(ELEMENT_TYPES)}")
    return np.dtype(str(dtype))


def _fixed(size: object) -> int | None:
    """A size that the model has settled; None for an open one (a name, -1)."""
    return size if isinstance(size, int) and size > 0 else None


class Loader:
    """What polygraphy iterates over. It sets ``input_metadata`` before it asks."""

    def __init__(self, call: Call) -> None:
        self.input_metadata: Metadata | None = None
        self._call = call

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        if self.input_metadata is None:
            raise ValueError("the model's inputs are unknown; use this loader through polygraphy")
        yield feeds(self.input_metadata, self._call.fit(self.input_metadata))


def step() -> Loader:
    """One token after a short text: plain decoding."""
    return Loader(STEP)


def verify() -> Loader:
    """Five tokens after a short text: a verification with four drafted tokens."""
    return Loader(VERIFY)


def prompt() -> Loader:
    """A chunk of 64 prompt tokens."""
    return Loader(PROMPT)


def branch() -> Loader:
    """Eight branches of a draft, a token each, behind a short text."""
    return Loader(BRANCH)


load_data = verify
"""The name that polygraphy looks for."""
