"""Commands of export that fail or are ended: one line at most, their exit code, nothing left."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

import export.cli.inspect
from export.cli.entry import main
from tests.engines.tiny_bundles import write_bundle
from tests.export.cli.failing import failing
from tests.helpers.checkpoints import make_llama

pytestmark = pytest.mark.usefixtures("no_real_graph")

ROOT = Path(__file__).resolve().parents[3]

BAD_BUILDS: list[tuple[list[str], str]] = [
    (["--no-onnx"], "--no-onnx is for compiled engines"),
    (["--compute-capability", "8.9"], "--compute-capability is for compiled engines"),
    (["--backend", "abacus"], "invalid choice: 'abacus'"),
    (["--precision", "fp16"], "--precision fp16 does not fit --backend onnxruntime"),
    (["--precision", "int4", "--block", "64"], "--block 64 does not fit --precision int4"),
    (["--precision", "int7"], "invalid choice: 'int7'"),
    (["--block", "48"], "invalid choice: 48"),
    (["--max-len", "many"], "invalid int value: 'many'"),
    (["--max-len", "0"], "--max-len is 0"),
    (["--max-len", "513"], "--max-len 513 is beyond the 512 positions"),
    (["--max-batch", "0"], "--max-batch is 0"),
    (["--num-draft", "17"], "--num-draft is 17, it must be between 0 and 16"),
    (["--max-branches", "-1"], "--max-branches is -1"),
    (["--draft", "no/such/draft/anywhere"], "no/such/draft/anywhere"),
    (["--colour", "red"], "unrecognized arguments: --colour red"),
    (["--out", "two\nlines"], "is not one line of UTF-8"),
    (["--out", "\udcff"], "is not one line of UTF-8"),
    (["--max", "3"], "unrecognized arguments: --max 3"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_BUILDS)
def test_a_build_that_cannot_be_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    target: str,
    arguments: list[str],
    words: str,
) -> None:
    out = tmp_path / "b"
    sound = ["build", "--target", target, "--out", str(out), "--max-len", "64"]
    assert words in failing(capsys, *sound, *arguments)
    assert not out.exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "COMMAND"),
        (["dance"], "invalid choice: 'dance'"),
        (["build"], "--target"),
        (["inspect"], "BUNDLE"),
        (["fetch"], "NAME"),
        (["fetch", "gpt-5"], "no default checkpoint is called 'gpt-5'"),
        (["inspect", "nowhere"], "no bundle at nowhere; build one: python -m export build"),
        (["verify", "nowhere"], "no bundle at nowhere"),
        (["build", "--target", "nowhere"], "no checkpoint 'nowhere'"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert words in failing(capsys, *argv)


def pickle_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def not_a_number(folder: Path) -> None:
    weight = np.full((320, 64), np.nan, dtype=np.float32)
    make_llama(folder, hidden=64, tensors={"lm_head.weight": weight})


def other_architecture(folder: Path) -> None:
    make_llama(folder, config={"architectures": ["MambaForCausalLM"], "model_type": "mamba"})


def other_rope(folder: Path) -> None:
    make_llama(folder, rope_scaling={"rope_type": "spiral", "factor": 4.0})


def missing_shard(folder: Path) -> None:
    shutil.rmtree(folder)
    make_llama(folder, shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()


def no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (pickle_only, "pickle"),
        (truncated, "model.safetensors"),
        (not_a_number, "lm_head.weight"),
        (other_architecture, "Mamba"),
        (other_rope, "spiral"),
        (missing_shard, "model-00002-of-00002.safetensors"),
        (no_tokenizer, "tokenizer.json"),
    ],
)
def test_a_checkpoint_that_cannot_be_built_is_one_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str, damage: Any, words: str
) -> None:
    damage(Path(target))
    (tmp_path / "out").mkdir()
    place = tmp_path / "out" / "b"
    arguments = ["build", "--target", target, "--out", str(place), "--max-len", "64", "--quiet"]
    assert words in failing(capsys, *arguments)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_draft_with_another_tokenizer_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    draft = make_llama(tmp_path / "draft", hidden=64)
    text = (draft / "tokenizer.json").read_text(encoding="utf-8")
    (draft / "tokenizer.json").write_text(text.replace("<|im_end|>", "<|end|>"), encoding="utf-8")
    arguments = ["build", "--target", target, "--draft", str(draft), "--max-len", "64"]
    words = failing(capsys, *arguments, "--out", str(tmp_path / "b"), "--quiet")
    assert "different tokenizers" in words


def test_inspect_notices_damage_that_loading_does_not_look_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.bundle.SMALL_FILE", 0)
    folder = write_bundle(tmp_path / "b")
    data = folder / "target/model.onnx.data"
    data.write_bytes(b"!" * data.stat().st_size)
    assert "sha256" in failing(capsys, "inspect", str(folder))


def test_verify_without_torch_is_one_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    arguments = ["build", "--target", target, "--max-len", "64", "--out", str(tmp_path / "b")]
    assert "ssd-trt[torch]" in failing(capsys, *arguments, "--verify", "--quiet")
    assert not (tmp_path / "b").exists()
    assert main([*arguments, "--quiet"]) == 0
    capsys.readouterr()
    assert "ssd-trt[torch]" in failing(capsys, "verify", str(tmp_path / "b"), "--quiet")


def test_ctrl_c_is_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_args: object, **_named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(export.cli.inspect, "open_bundle", interrupted)
    assert main(["inspect", str(tmp_path)]) == 130
    assert capsys.readouterr() == ("", "interrupted\n")


def test_an_operating_system_error_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_args: object, **_named: object) -> None:
        raise PermissionError(13, "Permission denied", "/root/b")

    monkeypatch.setattr(export.cli.inspect, "open_bundle", refused)
    assert failing(capsys, "inspect", "b") == "error: Permission denied: /root/b\n"


def inspected(folder: Path, stdout: TextIO) -> subprocess.CompletedProcess[str]:
    """``inspect`` of a bundle, in a process whose standard output goes there."""
    return subprocess.run(
        [sys.executable, "-m", "export", "inspect", str(folder)],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        process = inspected(folder, closed)
    assert process.returncode == 141
    assert process.stderr == ""


def test_a_full_disk_behind_stdout_is_one_line(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = inspected(folder, full)
    assert process.returncode == 2
    assert process.stderr == "error: cannot write to standard output: No space left on device\n"
