"""TensorRT at the command line: bad input is one line, and an interrupt leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import export.build.compiled
from export.cli.entry import main
from export.tensorrt import vendor
from tests.engines.tiny_bundles import BUILDER, write_compiled
from tests.export.cli.failing import failing
from tests.helpers.checkpoints import make_draft, make_llama
from tests.helpers.waiting import within

ROOT = Path(__file__).resolve().parents[3]
FAKE = ROOT / "tests/export/tensorrt/fake_package"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def build_line(tmp_path: Path) -> list[str]:
    """A sound build for TensorRT-RTX."""
    target = make_llama(tmp_path / "target", hidden=64, intermediate=128)
    draft = make_draft(tmp_path / "draft", hidden=64, intermediate=128)
    line = ["build", "--target", str(target), "--draft", str(draft), "--backend", "tensorrt-rtx"]
    return [*line, "--max-len", "64", "--out", str(tmp_path / "out" / "b")]


@pytest.mark.rtx
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--compute-capability", "9.0"], "choose from 7.5 8.0 8.6 8.9 12.0"),
        (["--compute-capability", "9.0"], "--backend tensorrt"),
        (["--compute-capability", "8.9", "6.1"], "--compute-capability 6.1 is not supported"),
        (["--compute-capability", "sm_89"], "written as major.minor"),
        (["--compute-capability"], "expected at least one argument"),
        (["--compute-capability", "7.5", "--precision", "bf16"], "no bfloat16 arithmetic"),
        (["--precision", "int8", "--max-batch", "0"], "--max-batch is 0"),
        (["--max-len", "513"], "--max-len 513 is beyond the 512 positions"),
        (["--max-batch", "9" * 12], "the largest GPU has 288.0 GB; use --max-batch"),
        (["--verify", "--no-onnx"], "leave --no-onnx out"),
    ],
)
def test_a_build_that_cannot_be_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str],
    build_line: list[str],
    tmp_path: Path,
    arguments: list[str],
    words: str,
) -> None:
    assert words in failing(capsys, *build_line, *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["tensorrt-rtx", "tensorrt"])
def test_an_absent_compiler_names_the_extra_that_brings_it(
    capsys: pytest.CaptureFixture[str],
    build_line: list[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setattr(vendor, "_load", vendor._load.__wrapped__)
    monkeypatch.setitem(sys.modules, name.replace("-", "_"), None)
    assert "pip install 'ssd-trt[" in failing(capsys, *build_line, "--backend", name)


@pytest.mark.rtx
def test_a_build_shows_its_way_and_a_dry_run_its_size(
    capsys: pytest.CaptureFixture[str], build_line: list[str], tmp_path: Path
) -> None:
    line = [*build_line, "--compute-capability", "8.9"]
    assert main([*line, "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["capabilities"] == ["8.9"]
    assert planned["num_in_engine_cache"] == {"target": 0, "draft": 0}
    for engine in planned["engines"].values():
        assert engine["disk_bytes"] > 2 * engine["file_bytes"]
        assert engine["build_bytes"] > 4 * engine["file_bytes"]
    assert main([*line, "--dry-run"]) == 0
    shown = capsys.readouterr().out
    target, draft = build_line[2], build_line[4]
    assert f"{target} with draft {draft}\n" in shown, "named as the bundle names them"
    assert "for compute capability 8.9\n" in shown
    assert "memory while building about" in shown
    assert "in the engine cache for these GPUs, in fp16: 0 of the target, 0 of the draft;" in shown
    assert not (tmp_path / "out").exists()

    assert main(line) == 0
    out, err = capsys.readouterr()
    assert "python -m export inspect" in out
    assert "target compiling: 0%" in err
    assert "target engine: compiled by tensorrt-rtx" in err
    assert main([*line, "--no-onnx", "--dry-run"]) == 0
    assert "in fp16: 1 of the target, 1 of the draft;" in capsys.readouterr().out
    assert main([*line, "--no-onnx"]) == 0
    assert "target engine: from the cache" in capsys.readouterr().err
    assert main(["cache", "list"]) == 0
    assert capsys.readouterr().out.count("tensorrt-rtx\tfp16\t8.9\n") == 2


def test_inspect_shows_what_a_plan_is_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = write_compiled(tmp_path / "b")
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    for words in (
        "engine.plan 14 bytes",
        f"by {BUILDER}, which alone can read it",
        "for compute capability 8.9 12.0; plugins ssd::Verify@1",
        "profile verify   batch 1-2 (2), tokens 2-5 (5), logits 2-5 (5), rows 1-112 (112)",
        "profile branch   batch 1-2 (2), tokens 1-8 (8)",
        "target/engine.plan",
    ):
        assert words in text
    assert main(["inspect", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["engines"]["target"]["plan"]["capabilities"] == ["8.9", "12.0"]
    memory = facts["memory"]["target"]
    assert memory["weight_bytes"] == len(b"plan of target")
    assert list(memory["kv_bytes_by_rows"]) == ["112"]
    (folder / "target/engine.plan").write_bytes(b"plan of tardet")
    assert "engine.plan is not the file that was built" in failing(capsys, "inspect", str(folder))


@pytest.mark.rtx
def test_a_place_that_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], build_line: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    err = failing(capsys, *build_line, "--quiet", "--out", str(tmp_path / "file" / "b"))
    assert "cannot write" in err
    assert "--out" in err


@pytest.mark.rtx
def test_a_disk_that_fills_while_compiling_is_one_line(
    capsys: pytest.CaptureFixture[str],
    build_line: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan is written by another process: its error has to come through whole."""
    request = export.build.compiled.CompileRequest

    def with_full_disk(**facts: object) -> object:
        return request(**{**facts, "plan_path": "/dev/full"})  # type: ignore[arg-type]

    monkeypatch.setattr(export.build.compiled, "CompileRequest", with_full_disk)
    assert "the disk filled up" in failing(capsys, *build_line, "--quiet")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("ending", ["abort", "fail"])
def test_a_compiler_that_ends_badly_is_one_line_and_leaves_nothing(
    build_line: list[str], tmp_path: Path, ending: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "export", *build_line, "--quiet"],
        env=fake_environment(ending),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: tensorrt-rtx ")
    assert "--max-len 64 --max-batch 1 --num-draft 4 --max-branches 16\n" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_an_interrupt_while_compiling_leaves_nothing_behind(
    build_line: list[str], tmp_path: Path, how: signal.Signals, code: int
) -> None:
    """The compiler hangs for ten minutes and listens to nobody. A terminal interrupts both."""
    mark = tmp_path / "compiling"
    with subprocess.Popen(
        [sys.executable, "-m", "export", *build_line],
        env=fake_environment(f"hang {mark}"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as command:
        try:
            within(120, lambda: mark.exists() or command.poll() is not None)
            assert command.poll() is None, command.communicate()[1]
            assert mark.exists(), "it never came to compile"
            if how == signal.SIGINT:
                os.killpg(command.pid, how)
            else:
                command.send_signal(how)
            _, err = command.communicate(timeout=30)
        finally:
            command.kill()
    assert command.returncode == code, err
    assert "Traceback" not in err
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text(encoding="utf-8")), 0)


def fake_environment(ending: str) -> dict[str, str]:
    """For a command that finds the fake TensorRT-RTX before the real one."""
    path = os.pathsep.join([str(FAKE), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "FAKE_TENSORRT": ending}
