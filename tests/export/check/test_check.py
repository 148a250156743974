from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import export.check.verify
from engines.bundle import Bundle
from engines.errors import BackendError, MissingDependencyError
from engines.manifest import DRAFT, TARGET
from export.build.build import build
from export.build.options import BuildOptions
from export.check.reference import load_reference, require_transformers
from export.check.scoring import Scoring
from export.check.verify import (
    EngineCheck,
    Verification,
    require_packages,
    verify,
    verify_or_refuse,
)
from export.checkpoint.api import open_checkpoint
from export.cli.verify import text as words_of
from tests.helpers.checkpoints import (
    LLAMA3_ROPE,
    byte_level_tokenizer,
    make_draft,
    make_gguf,
    make_llama,
    make_qwen3,
)
from tests.helpers.compiled_bundle import compiled_bundle


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


@pytest.mark.parametrize(
    ("package", "extra"),
    [("torch", "torch"), ("onnxruntime", "cpu"), ("tokenizers", "cpu"), ("jinja2", "cpu")],
)
def test_what_is_missing_is_said_before_anything_is_done(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found out after the checkpoint had been loaded, minutes of work for a large one."""
    target = make_llama(tmp_path / "t")
    bundle = built(tmp_path, target)
    for present in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, present, sys)
    monkeypatch.setitem(sys.modules, package, None)
    progress: list[str] = []
    with pytest.raises(MissingDependencyError, match=rf"{package}.*ssd-trt\[{extra}\]"):
        verify(
            bundle.path,
            open_checkpoint(target),
            progress=lambda what, _done, _total: progress.append(what),
        )
    assert progress == []


@pytest.mark.rtx
def test_a_compiled_bundle_needs_polygraphy_from_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = compiled_bundle("fp16")
    for present in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, present, sys)
    monkeypatch.setitem(sys.modules, "polygraphy", None)
    with pytest.raises(MissingDependencyError, match=r"polygraphy.*ssd-trt\[bench\]"):
        require_packages(bundle)


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
    assert list(result.engines) == [TARGET]
    assert_equal_to_rounding(result.engines[TARGET])


def assert_equal_to_rounding(check: EngineCheck) -> None:
    assert (check.passed, check.engine, check.precision) == (True, "engine", "fp32")
    assert check.fidelity.max_abs_difference < 1e-4
    assert check.fidelity.top1_agreement == 1
    assert check.fidelity.num_prompts == 4
    assert check.fidelity.num_positions > 20


def with_the_targets_tokenizer(folder: Path, vocab: int) -> Path:
    make_llama(folder, seed=7, vocab=vocab, tokenizer=False)
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer(320))
    return folder


DRAFT_MAKERS = {
    "its own ids, borrowed embeddings": make_draft,
    "its own ids and embeddings": lambda folder: make_draft(folder, embeddings_from_target=False),
    "all ids, tied": lambda folder: make_llama(folder, seed=7, layers=1, tied=True),
    "more ids than the target": lambda folder: with_the_targets_tokenizer(folder, vocab=330),
    "fewer ids than the target": lambda folder: with_the_targets_tokenizer(folder, vocab=310),
    "another family": lambda folder: make_qwen3(folder, seed=7, tokenizer=False),
}


@pytest.mark.torch
@pytest.mark.parametrize("kind", DRAFT_MAKERS)
def test_an_fp32_draft_agrees_with_its_checkpoint_too(tmp_path: Path, kind: str) -> None:
    target, draft = make_llama(tmp_path / "t"), DRAFT_MAKERS[kind](tmp_path / "d")
    bundle = built(tmp_path, target, draft=str(draft))
    result = verify(bundle.path, open_checkpoint(target), draft=open_checkpoint(draft))
    assert list(result.engines) == [TARGET, DRAFT]
    for check in result.engines.values():
        assert_equal_to_rounding(check)
    assert (result.passed, result.notes) == (True, ())


@pytest.mark.torch
def test_v1_a_padded_target_is_compared_without_its_padding(tmp_path: Path) -> None:
    """Its checkpoint may answer with ids that the bundle does not have."""
    target = with_the_targets_tokenizer(tmp_path / "t", vocab=352)
    draft = with_the_targets_tokenizer(tmp_path / "d", vocab=330)
    bundle = built(tmp_path, target, draft=str(draft))
    assert bundle.target.model.vocab_size == 320
    result = verify(bundle.path, open_checkpoint(target), draft=open_checkpoint(draft))
    for check in result.engines.values():
        assert_equal_to_rounding(check)


@pytest.mark.torch
def test_a_wrong_draft_fails_and_is_named(tmp_path: Path) -> None:
    """It would only be slow: no output tells that its engine is broken."""
    target, draft = make_llama(tmp_path / "t"), make_draft(tmp_path / "d")
    bundle = built(tmp_path, target, draft=str(draft))
    other = make_draft(tmp_path / "other", seed=101)
    result = verify(bundle.path, open_checkpoint(target), draft=open_checkpoint(other))
    assert (result.engines[TARGET].passed, result.engines[DRAFT].passed) == (True, False)
    assert not result.passed
    assert result.verdict == "draft: logits may differ by 0.005"
    printed = words_of(result)
    assert "\ndraft: fp32 engine against the fp32 checkpoint, 4 prompts, " in printed
    assert printed.endswith("\nFAILED: draft: logits may differ by 0.005\n")


@pytest.mark.torch
def test_an_int8_engine_has_its_fidelity_measured(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "t", hidden=64, intermediate=128)
    bundle = built(tmp_path, target, precision="int8")
    check = verify(bundle.path, open_checkpoint(target)).engines[TARGET]
    assert check.precision == "int8"
    assert 1e-4 < check.fidelity.max_abs_difference < 2
    assert 1e-8 < check.fidelity.mean_kl < 0.1


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
    monkeypatch.setattr(export.check.verify, "scoring", lambda _bundle, _role: chosen)
    with pytest.raises(
        BackendError, match="built target engine does not compute what its checkpoint does"
    ):
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
    target, draft = make_llama(tmp_path / "t"), make_draft(tmp_path / "d")
    options = BuildOptions(
        str(target), str(draft), out=tmp_path / "b", precision="fp32", max_len=64
    )
    result = build(options, verify=verify_or_refuse)
    assert isinstance(result.verification, Verification)
    assert result.verification.passed
    assert set(result.verification.engines) == {"target", "draft"}
