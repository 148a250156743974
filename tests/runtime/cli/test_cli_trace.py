"""``python -m runtime trace`` on files of its own making and on others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli.entry import main
from runtime.trace.chrome import write_trace
from runtime.trace.timeline import Timeline


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    timeline = Timeline()
    for start in (0.0, 0.010):
        timeline.span("target", "verify", start, start + 0.008)
        timeline.span("draft", "prepare", start + 0.002, start + 0.009)
    timeline.moment("hit", 0.008, row=0)
    path = tmp_path / "trace.json"
    write_trace(timeline, path, {})
    return path


def test_figures_as_json(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["draft_hidden_ms"] == pytest.approx(12.0)
    assert found["draft_exposed_ms"] == pytest.approx(2.0)
    assert found["moments"] == {"hit": 1}
    assert [(w["lane"], w["label"], w["count"]) for w in found["work"]] == [
        ("draft", "prepare", 2),
        ("target", "verify", 2),
    ]
    assert found["work"][1]["median_ms"] == pytest.approx(8.0)


def test_figures_for_people_and_a_picture(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "rounds.svg"
    assert main(["trace", str(trace), "--svg", str(svg), "--from", "0", "--to", "20"]) == 0
    told = capsys.readouterr().out
    assert "86% hidden" in told
    assert "1 x hit" in told
    assert "\nhit = the outcome had been prepared\n" in told
    assert "\nadmit = " not in told, "nothing bears that label here"
    assert svg.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--from", "500"], "--from"),
        (["--from", "5", "--to", "4"], "--from"),
        (["--from", "nan"], "--from"),
        (["--to", "soon"], "--to"),
    ],
)
def test_a_stretch_that_cannot_be_drawn_is_refused_and_nothing_written(
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    extra: list[str],
    expected: str,
) -> None:
    svg = tmp_path / "rounds.svg"
    assert main(["trace", str(trace), "--svg", str(svg), *extra]) == 2
    assert expected in capsys.readouterr().err
    assert not svg.exists()


def test_a_file_that_is_no_trace_and_a_place_that_cannot_be_written(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("{}")
    assert main(["trace", str(tmp_path / "other.json")]) == 2
    assert "no trace of ours" in capsys.readouterr().err
    assert main(["trace", str(trace), "--svg", str(tmp_path)]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["trace", str(trace), "--svg", str(trace)]) == 2
    assert "is the trace itself" in capsys.readouterr().err
    assert main(["trace", str(trace), "--from", "3"]) == 2
    assert "--svg" in capsys.readouterr().err
    assert main(["trace", str(trace)]) == 0, "the trace was damaged"
