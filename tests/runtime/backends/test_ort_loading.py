"""A model that is not the one its manifest describes is refused when it is loaded."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import BackendError, BundleCorruptError
from engines.manifest import EngineManifest
from engines.tensors import DType, TensorSpec
from runtime.backends.onnxruntime import OrtSession
from runtime.backends.vocab_map import load_vocab_map
from runtime.device.host import HostDevice
from tests.helpers.tiny_bundle import tiny_bundle


def load(manifest: EngineManifest) -> None:
    device = HostDevice()
    try:
        folder = tiny_bundle().path / manifest.role
        OrtSession(folder, manifest, device, num_threads=1, num_slots=1).load()
    finally:
        device.close()


def edited(
    specs: tuple[TensorSpec, ...], which: str, change: dict[str, Any]
) -> tuple[TensorSpec, ...]:
    return tuple(replace(spec, **change) if spec.name == which else spec for spec in specs)


@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_border_unlike_the_models_is_refused_when_loading(role: str) -> None:
    """A draft's first call comes after the target's first token: it failed in mid-text."""
    bundle = tiny_bundle()
    good = bundle.target if role == "target" else bundle.draft
    assert good is not None
    load(good)
    for part, name, change in (
        ("inputs", "tokens", {"name": "words"}),
        ("inputs", "tokens", {"dtype": DType.INT32}),
        ("inputs", "mask", {"shape": ("B", "T", "L")}),
        ("outputs", "logits", {"shape": ("B", "R", 7)}),
        ("outputs", "logits", {"name": "scores"}),
    ):
        specs = edited(getattr(good, part), name, change)
        with pytest.raises(BackendError, match=f"other {part} than its manifest says"):
            load(replace(good, **{part: specs}))


@pytest.mark.parametrize("change", [{"num_layers": 3}, {"num_kv_heads": 1}, {"head_dim": 8}])
def test_caches_unlike_the_models_are_refused_when_loading(change: dict[str, int]) -> None:
    good = tiny_bundle().target
    with pytest.raises(BackendError, match="caches or the vocabulary"):
        load(replace(good, kv=replace(good.kv, **change)))


def saved(array: np.ndarray, save: Callable[..., None] = np.save) -> bytes:
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


HUGE = b"\x93NUMPY\x01\x00\x46\x00" + (
    b"{'descr': '<i4', 'fortran_order': False, 'shape': (9999999999999,), }".ljust(69) + b"\n"
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 no archive",
        b"text",
        HUGE,
        HUGE.replace(b"9999999999999,", b"99999999999999999999,")[:80],
        saved(np.arange(300), np.savez),
        saved(np.arange(300.0)),
        saved(np.arange(299)),
        saved(np.arange(300) - 1),
        saved(np.arange(300) + 21),
        saved(np.zeros(300, int)),
    ],
    ids=[
        "empty",
        "zip",
        "text",
        "huge",
        "larger",
        "archive",
        "floats",
        "short",
        "negative",
        "beyond",
        "repeated",
    ],
)
def test_a_damaged_vocabulary_map_is_one_line(tmp_path: Path, content: bytes) -> None:
    """numpy raises nearly anything for one, and advises to unpickle it."""
    manifest = tiny_bundle().draft
    assert manifest is not None
    assert manifest.vocab_map is not None
    (tmp_path / manifest.vocab_map).write_bytes(content)
    with pytest.raises(BundleCorruptError, match="rebuild the bundle") as caught:
        load_vocab_map(tmp_path, manifest)
    assert "pickle" not in str(caught.value)
