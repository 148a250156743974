from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.check.verify
from engines.bundle import Bundle
from engines.errors import BackendError, CheckpointError, MissingDependencyError
from export.build.build import build
from export.build.options import BuildOptions
from export.check.reference import load_reference, require_transformers
from export.check.scoring import Scoring
from export.check.verify import find_checkpoint, verify, verify_or_refuse
from export.checkpoint.api import open_checkpoint
from tests.helpers.checkpoints import LLAMA3_ROPE, make_gguf, make_llama, make_qwen3


def built(tmp_path: Path, target: Path, **changes: Any) -> Bundle:
    options = {"precision": "fp32", "max_len": 96, "num_draft": 2, "max_branches": 2, **changes}
    return build(BuildOptions(str(target), out=tmp_path / "b", **options)).bundle


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_the_error_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package == "transformers":
        monkeypatch.setitem(sys.modules, "torch", sys)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"{package}.*ssd-trt\[torch\]"):
        require_transformers()
    checkpoint = open_checkpoint(make_llama(tmp_path))
    with pytest.raises(MissingDependencyError):
        load_reference(checkpoint)


def test_the_checkpoint_is_found_under_the_name_it_was_built_with(tmp_path: Path) -> None:
    bundle = built(tmp_path, make_llama(tmp_path / "t"))
    assert find_checkpoint(bundle, None).fingerprint() == bundle.target.source.fingerprint
    (tmp_path / "t").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError, match=r"not found under its name then: .*--target"):
        find_checkpoint(bundle, None)
    found = find_checkpoint(bundle, str(tmp_path / "moved"))
    assert found.fingerprint() == bundle.target.source.fingerprint
    with pytest.raises(CheckpointError):
        find_checkpoint(bundle, str(tmp_path / "nowhere"))


def test_another_checkpoint_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Comparing with it would blame the engine."""
    bundle = built(tmp_path, make_llama(tmp_path / "t"))
    make_llama(tmp_path / "t", seed=1)
    with pytest.raises(CheckpointError, match=r"is not the checkpoint that .* was built from"):
        find_checkpoint(bundle, None)
    other = make_llama(tmp_path / "other", seed=2)
    with pytest.raises(CheckpointError, match="is not the checkpoint"):
        find_checkpoint(bundle, str(other))


MAKERS = {
    "llama": lambda folder: make_llama(folder),
    "llama tied, llama3 rope": lambda folder: make_llama(
        folder, tied=True, rope_scaling=LLAMA3_ROPE
    ),
    "qwen3": lambda folder: make_qwen3(folder, rope_theta=1e6),
    "gguf": lambda folder: make_gguf(folder, kind="Q8_0"),
}


@pytest.mark.torch
@pytest.mark.parametrize("kind", MAKERS)
def test_an_fp32_engine_agrees_with_transformers(tmp_path: Path, kind: str) -> None:
    target = MAKERS[kind](tmp_path / "t")
    bundle = built(tmp_path, target)
    result = verify(bundle.path, open_checkpoint(target))
    assert result.passed
    assert result.max_abs_difference < 1e-4
    assert result.top1_agreement == 1
    assert result.num_prompts == 4
    assert result.num_positions > 20


@pytest.mark.torch
def test_an_int8_engine_has_its_fidelity_measured(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "t", hidden=64, intermediate=128)
    bundle = built(tmp_path, target, precision="int8")
    result = verify(bundle.path, open_checkpoint(target))
    assert result.precision == "int8"
    assert 1e-4 < result.max_abs_difference < 2
    assert 1e-8 < result.mean_kl < 0.1


@pytest.mark.torch
@pytest.mark.parametrize("max_len", [2, 8])
def test_a_bundle_for_short_texts_is_verified_within_its_limit(
    tmp_path: Path, max_len: int
) -> None:
    target = make_llama(tmp_path / "t")
    bundle = built(tmp_path, target, max_len=max_len)
    assert verify(bundle.path, open_checkpoint(target)).passed


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_wrong_engine_fails_and_is_refused(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make_llama(tmp_path / "t", hidden=64, intermediate=128)
    bundle = built(tmp_path, target, precision=precision)
    checkpoint = open_checkpoint(target)
    right = load_reference(checkpoint)

    def wrong(_bundle: Path, _role: str, ids: list[int]) -> np.ndarray:
        return np.roll(right.logits(ids), 1, axis=1)

    assert not verify(bundle.path, checkpoint, score=wrong).passed
    chosen = nullcontext(Scoring("engine", wrong))
    monkeypatch.setattr(export.check.verify, "scoring", lambda _bundle: chosen)
    with pytest.raises(BackendError, match="does not compute what t does"):
        verify_or_refuse(bundle.path, checkpoint)


@pytest.mark.torch
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_broken_engine_does_not_look_like_a_perfect_one(tmp_path: Path, value: float) -> None:
    target = make_llama(tmp_path / "t")
    bundle = built(tmp_path, target)

    def broken(_bundle: Path, _role: str, ids: list[int]) -> np.ndarray:
        return np.full((len(ids), 320), value, dtype=np.float32)

    with pytest.raises(BackendError, match="NaN or infinite"):
        verify(bundle.path, open_checkpoint(target), score=broken)


@pytest.mark.torch
def test_a_build_is_verified_before_it_is_published(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "t")
    options = BuildOptions(str(target), out=tmp_path / "b", precision="fp32", max_len=64)
    result = build(options, verify=verify_or_refuse)
    assert result.verification.passed  # type: ignore[attr-defined]
