"""Acceptance rows V as a user meets them: a pair that does not fit, a draft that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.cli.entry import main
from runtime.cli.entry import main as run
from tests.export.cli.failing import message
from tests.helpers.checkpoints import make_draft, make_llama

Command = Callable[[list[str]], int]


@pytest.fixture
def plain_target(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "target")


def failing(capsys: pytest.CaptureFixture[str], arguments: list[str], command: Command) -> str:
    """The one line of a command that must fail with code 2."""
    assert command(arguments) == 2
    return message(capsys)


def build_arguments(target: Path, draft: Path | str, place: Path) -> list[str]:
    limits = ["--max-len", "64", "--max-branches", "4", "--precision", "fp32"]
    return ["build", "--target", str(target), "--draft", str(draft), "--out", str(place), *limits]


def reversed_merges(folder: Path) -> Path:
    path = make_llama(folder, layers=1) / "tokenizer.json"
    document = json.loads(path.read_bytes())
    document["model"]["merges"].reverse()
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder


DRAFTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "v6 another tokenizer": (reversed_merges, "different tokenizers"),
    "v7 no map": (lambda folder: make_draft(folder, with_map=False), "draft_vocab_size 300"),
    "v8 ids for offsets": (
        lambda folder: make_draft(folder, offsets=np.arange(300)),
        "must hold offsets",
    ),
    "v8 an id twice": (
        lambda folder: make_draft(folder, offsets=np.array([1, *[0] * 299])),
        "target id 1",
    ),
    "v8 out of range": (
        lambda folder: make_draft(folder, offsets=np.full(300, 21)),
        "target id 320, outside",
    ),
    "v11 a wrong path": (lambda folder: folder / "nowhere", "nowhere"),
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_a_draft_that_does_not_fit_is_refused_and_leaves_no_bundle_without_it(
    tmp_path: Path, plain_target: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """V6, V7, V8, V11: elsewhere speculation stopped, or accepted nothing, and nobody was told."""
    make, words = DRAFTS[kind]
    arguments = build_arguments(plain_target, make(tmp_path / "draft"), tmp_path / "b")
    assert words in failing(capsys, [*arguments, "--quiet"], main)
    assert not (tmp_path / "b").exists()


def test_v6_a_bundle_without_a_draft_says_what_it_can_do_and_why(
    tmp_path: Path, plain_target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "b"
    assert main([*build_arguments(plain_target, "none", place), "--dry-run"]) == 0
    assert "without a draft: modes ar and sd, which copies up to" in capsys.readouterr().out
    assert main([*build_arguments(plain_target, "none", place), "--no-fidelity"]) == 0
    assert "without a draft: modes ar and sd, which copies up to" in capsys.readouterr().out
    assert main(["inspect", str(place)]) == 0
    assert "draft    none: modes ar and sd, which copies up to" in capsys.readouterr().out
    generate = ["generate", "--bundle", str(place), "--prompt", "the cat", "--max-tokens", "4"]
    for mode in ("sd", "auto"):
        assert run([*generate, "--mode", mode, "--json"]) == 0
        out, err = capsys.readouterr()
        answer: dict[str, Any] = json.loads(out)
        assert answer["mode"] == mode
        assert "drafts are looked up in the text: this bundle has no draft" in answer["note"]
        assert "this bundle has no draft" in err
    refusal = failing(capsys, [*generate, "--mode", "ssd"], run)
    assert "--mode sd, which then looks drafts up" in refusal
    assert "rebuild the bundle with --draft" in refusal


@pytest.mark.parametrize("mode", ["auto", "ar", "sd", "ssd"])
def test_v11_a_bundle_whose_draft_is_damaged_is_not_run_without_it(
    tmp_path: Path, plain_target: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    place = tmp_path / "b"
    draft = make_draft(tmp_path / "draft")
    assert main([*build_arguments(plain_target, draft, place), "--quiet"]) == 0
    capsys.readouterr()
    (place / "draft" / "model.onnx").unlink()
    generate = ["generate", "--bundle", str(place), "--prompt", "the cat", "--mode", mode]
    assert "draft/model.onnx" in failing(capsys, generate, run)


def test_build_prints_figures_that_no_fidelity_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_llama(tmp_path / "t", hidden=64, intermediate=128)
    found = []
    for options in ([], ["--no-fidelity"]):
        place = str(tmp_path / f"b{len(options)}")
        arguments = ["build", "--target", str(target), "--max-len", "64", "--out", place, "--json"]
        assert main([*arguments, "--precision", "int4", *options]) == 0
        out, err = capsys.readouterr()
        found.append((json.loads(out)["engines"]["target"], err))
        assert main([*arguments, "--precision", "int4", *options]) == 0
        out, err = capsys.readouterr()
        assert json.loads(out)["cache_hit"]
        assert ("mean KL divergence" in err) == (not options)  # said again, not measured again
    (measured, said), (left_out, silent) = found
    assert set(measured["fidelity"]) == {"num_positions", "agreement", "mean_kl"}
    assert "mean KL divergence" in said
    assert left_out["fidelity"] is None
    assert "KL" not in silent
    assert (measured["stored"], measured["computed_in"]) == (["F32"], "float32")
