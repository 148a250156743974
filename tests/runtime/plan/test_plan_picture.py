"""The plot: which files are taken, what is said without matplotlib, what is drawn with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engines.errors import MissingDependencyError, UsageError
from runtime.plan.picture import draw, require_drawable
from runtime.plan.planner import Question, answer
from runtime.spec.cost.economics import Devices
from runtime.spec.cost.laws import laws_of_acceptance
from runtime.spec.cost.times import ByTokens, PairTimes

TIMES = PairTimes.apart(ByTokens((1,), (0.015,)), ByTokens((1,), (0.0015,)))
QUESTION = Question(TIMES, laws_of_acceptance(0.8), 1, Devices(4, 1), 4, 8)


@pytest.mark.parametrize("name", ["plan.pdf", "plan", "plan.png.txt"])
def test_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"is neither \.png nor \.svg"):
        require_drawable(tmp_path / name)


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--plot"):
        require_drawable(tmp_path / "none" / "plan.svg")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(UsageError, match="--plot"):
        require_drawable(tmp_path / "folder.png")


def test_without_matplotlib_the_package_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"matplotlib.*ssd-trt\[plot\]"):
        require_drawable(tmp_path / "plan.svg")


def test_a_vector_plot_names_its_axes_and_modes_and_is_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan = answer(QUESTION)
    first, second = tmp_path / "first.svg", tmp_path / "second.SVG"
    for path in (first, second):
        require_drawable(path)
        draw(plan, path)
    text = first.read_text(encoding="utf-8")
    assert text == second.read_text(encoding="utf-8")
    for words in ("ssd", "this pair (0.80)", "acceptance of a drafted token"):
        assert f"<!-- {words} -->" in text
    assert "<!-- tokens/s for each device -->" in text
    assert "<dc:date>" not in text


def test_a_shared_device_has_one_panel(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plan = answer(Question(TIMES, laws_of_acceptance(0.8), 1, Devices(1, 0), 4, 8))
    draw(plan, tmp_path / "plan.svg")
    assert "for each device" not in (tmp_path / "plan.svg").read_text(encoding="utf-8")


def test_a_bitmap_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(answer(QUESTION), tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG\r\n")
