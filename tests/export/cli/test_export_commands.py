"""What the commands of export do, print and explain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import export.build.build
import export.cli.build
import export.cli.entry
import export.fetch
from engines.bundle import seal_bundle
from engines.manifest import load_bundle
from export.cli.entry import main
from tests.engines.tiny_bundles import REBUILD, write_bundle
from tests.export.cli.failing import failing
from tests.helpers.checkpoints import make_draft

pytestmark = pytest.mark.usefixtures("no_real_graph")


def test_build_prints_one_json_object_and_then_reports_the_cache_hit(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    draft = make_draft(tmp_path / "draft", hidden=64)
    arguments = ["build", "--target", target, "--draft", str(draft), "--max-len", "64"]
    arguments += ["--out", str(tmp_path / "b"), "--json"]
    results = []
    for _ in range(2):
        assert main(arguments) == 0
        results.append(json.loads(capsys.readouterr().out))
    first, second = results
    assert (first["cache_hit"], second["cache_hit"]) == (False, True)
    assert first["bundle"] == str(tmp_path / "b")
    assert first["build_key"] == second["build_key"]
    assert first["engines"] == second["engines"]
    assert set(first["engines"]) == {"target", "draft"}
    files = [path for path in (tmp_path / "b").rglob("*") if path.is_file()]
    sizes = sum(path.stat().st_size for path in files if path.name != "bundle.json")
    assert first["num_bytes"] == sizes
    assert first["seconds"] >= 0


def test_quiet_says_the_result_only(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    arguments = ["build", "--target", target, "--max-len", "64", "--out", str(tmp_path / "b")]
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'b'}\n", "")
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "python -m runtime generate --bundle" in out
    assert "cache hit" in err


def test_a_dry_run_checks_and_prints_but_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    """T16."""
    arguments = ["build", "--target", target, "--max-len", "64", "--dry-run"]
    arguments += ["--out", str(tmp_path / "out" / "b")]
    assert main([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["cache_hit"] is False
    assert plan["engines"]["target"]["build_bytes"] > plan["engines"]["target"]["file_bytes"] > 0
    assert main(arguments) == 0
    assert "memory while building about" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    failing(capsys, *arguments, "--num-draft", "99")


def test_the_default_place_is_named_after_the_target(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["build", "--target", target, "--max-len", "64", "--quiet"]) == 0
    assert capsys.readouterr().out == "engines/bundles/target\n"
    assert (tmp_path / "engines/bundles/target/bundle.json").is_file()


def test_inspect_shows_models_limits_files_and_memory(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = write_bundle(tmp_path / "b")
    assert main(["inspect", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["hashes_checked"] is True
    assert facts["limits"]["max_len"] == 96
    assert facts["rebuild"] == REBUILD
    draft = facts["memory"]["draft"]
    row = 2 * 2 * 2 * 8 * 4 * 2  # keys and values, layers, heads, width, float32, two slots
    assert draft["kv_bytes_by_rows"] == {str(n): n * row for n in (64, 128, 144)}
    assert draft["total_bytes"] == draft["weight_bytes"] + 144 * row
    assert facts["engines"]["draft"]["model"]["output_vocab"] == 48

    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    for words in ("max", "48 of 64 tokens", "ssd::Verify", "draft/model.onnx.data", REBUILD):
        assert words in text


def test_inspect_prints_nothing_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A bundle comes from others; its names could clear the screen, or forge lines."""
    evil = "\x1b[2J\r\x9b31m\n\u202e"
    folder = write_bundle(tmp_path / "b")
    path = folder / "target/manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["source"]["name"] = document["model"]["family"] = evil
    document["plugins"] = [evil]
    path.write_text(json.dumps(document), encoding="utf-8")
    manifest = load_bundle((folder / "bundle.json").read_text(encoding="utf-8"), "b")
    seal_bundle(folder, replace(manifest, build_key=evil, files=()))
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert all(character.isprintable() or character == "\n" for character in text)
    assert text.count("\\x1b[2J\\r\\x9b31m\\n\\u202e") == 4
    assert main(["inspect", str(folder), "--json"]) == 0
    assert capsys.readouterr().out.isascii()


@pytest.mark.torch
def test_verify_prints_figures_and_exits_by_them(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from export.graph.api import build_graph

    monkeypatch.setattr(export.build.build, "_build_graph", lambda: build_graph)
    arguments = ["build", "--target", target, "--max-len", "64", "--precision", "fp32"]
    arguments += ["--out", str(tmp_path / "b"), "--quiet"]
    assert main([*arguments, "--verify", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verification"]["passed"] is True
    assert main([*arguments[:-1], "--verify"]) == 0
    assert "passed: logits may differ by" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "b"), "--json", "--quiet"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["passed"] is True
    assert facts["engines"]["target"]["fidelity"]["first_divergence"] is None
    monkeypatch.setattr("export.check.verify.MAX_FP32_DIFFERENCE", 0.0)
    assert main(["verify", str(tmp_path / "b"), "--quiet"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_fetch_prints_where_the_checkpoint_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(name: str, *, progress: Any) -> Path:
        progress("downloading: 1 of 2 MB")
        progress("downloading: 2 of 2 MB")
        progress("ready")
        return Path("/cache") / name

    monkeypatch.setattr(export.fetch, "fetch", fetch)
    assert main(["fetch", "smollm2-135m"]) == 0
    out, err = capsys.readouterr()
    assert out == "smollm2-135m is in /cache/smollm2-135m\n"
    assert err == "downloading: 1 of 2 MB\nready\n"
    assert main(["fetch", "smollm2-135m", "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"name": "smollm2-135m", "path": "/cache/smollm2-135m"}
    assert err == ""


@pytest.mark.parametrize("command", ["fetch", "build", "inspect", "verify", "distill"])
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"python -m export {command}" in text
    assert len(text.splitlines()) > 8


def test_the_programs_help_has_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    parser = export.cli.entry.build_parser()
    for text in (export.cli.entry.EXAMPLES, export.cli.build.EXAMPLES):
        lines = text.replace("\\\n", " ").splitlines()
        commands = [line.split()[3:] for line in lines if line.startswith("  python -m export")]
        assert len(commands) >= 3
        for command in commands:
            if command[0] != "COMMAND":
                parser.parse_args(command)
    assert main(["--help"]) == 0
    assert "python -m export inspect engines/bundles/demo" in capsys.readouterr().out


def test_what_a_bundle_without_a_draft_can_do_is_said_alike_everywhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, target: str
) -> None:
    """``inspect`` offered --mode sd where there is no room for a drafted token."""
    for num_draft, words in (
        (0, "mode ar (--num-draft 0 leaves no"),
        (3, "sd, which copies up to 3"),
    ):
        place = str(tmp_path / f"k{num_draft}")
        arguments = ["build", "--target", target, "--max-len", "64", "--out", place]
        arguments += ["--num-draft", str(num_draft), "--no-fidelity"]
        for command in ([*arguments, "--dry-run"], arguments, ["inspect", place]):
            assert main(command) == 0
            assert words in capsys.readouterr().out
