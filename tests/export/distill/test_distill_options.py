"""Options of the command that no run could do anything with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

from engines.errors import MissingDependencyError, SsdError, UsageError
from export.distill import cli
from tests.helpers.checkpoints import make_draft, make_llama


def parse(*options: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    return parser.parse_args(options)


def test_missing_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError, match=r"ssd-trt\[torch\]"):
        cli.run(parse("--target", "any", "--out", str(tmp_path / "draft")))


@pytest.mark.torch
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--minutes", "0"), "--minutes"),
        (("--minutes", "nan"), "--minutes"),
        (("--minutes", "inf"), "--minutes"),
        (("--passes", "0"), "--passes"),
        (("--write-minutes", "-1"), "--write-minutes"),
        (("--write-minutes", "0"), "leaves no text"),
        (("--from-layers", "0", "2"), "layers 0 to 1, found 2"),
        (("--width", "33"), "--width must be 1 to 32"),
        (("--width", "20"), "--width must be a multiple of 32"),
        (("--device", "abacus"), "--device abacus"),
        (("--evaluate", "none.jsonl"), "--evaluate none.jsonl"),
        (("--prompts", "none.txt"), "--prompts none.txt"),
        (("--answer-tokens", "0"), "--answer-tokens must be 1 to 1023"),
        (("--answer-tokens", "1024"), "--answer-tokens must be 1 to 1023"),
        (("--answer-tokens", "64"), "--answer-tokens is of answers to --prompts"),
        (("--greedy", "0.9", "--data", "text.npz"), "--greedy is of text that the target writes"),
        (("--greedy", "1.5"), "--greedy must be 0 to 1"),
        (("--greedy", "nan"), "--greedy must be 0 to 1"),
        (("--threads", "0"), "--threads"),
        (("--threads", "99999999999"), "--threads"),
        (("--seed", "-1"), "--seed"),
        (("--layers", "0"), "--layers must be 1 or more"),
        (("--layers", "3"), "--layers must be 1 to 2"),
        (("--vocab", "0"), "--vocab must be 1 to 320"),
        (("--vocab", "321"), "--vocab must be 1 to 320"),
        (("--out", "."), "exists already"),
        (("--data", "none.npz"), "no such file"),
        (("--target", "/no/such/folder"), "/no/such/folder"),
    ],
)
def test_bad_options_fail_before_any_work(
    tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    target = make_llama(tmp_path / "target")
    base = ("--target", str(target), "--out", str(tmp_path / "draft"), "--vocab", "160", "--quiet")
    with pytest.raises(SsdError, match=message) as caught:
        cli.run(parse(*base, *options))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "draft").exists()


def test_output_that_cannot_be_made_is_refused_before_training(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="not a writable folder"):
        cli.run(parse("--target", "any", "--out", str(file / "draft")))


@pytest.mark.torch
def test_a_draft_is_no_target(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "draft")
    with pytest.raises(UsageError, match="is a draft itself"):
        cli.run(parse("--target", str(draft), "--out", str(tmp_path / "out"), "--quiet"))
