"""Charts: rows where their figures belong, in the colours of their labels."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.report.charts import MOST_LETTERS, NAMES, RIGHT, WIDTH, Bar, Group, Range, chart

COLOURS = {"sd": 1, "ssd": 2}
figures = st.floats(0, 1e9, allow_subnormal=False)


def drawing(markup: str) -> ElementTree.Element:
    svg = ElementTree.fromstring(markup).find("svg")
    assert svg is not None
    return svg


def test_bars_are_as_long_as_their_values() -> None:
    rows = [Bar("sd", 0.5, "0.50"), Bar("ssd", 1.5, "1.50", low=1.0, high=2.0)]
    svg = drawing(chart("speed-up", [Group("qa", rows)], COLOURS, reference=1.0))
    short, long = (float(box.attrib["width"]) for box in svg.iter("rect"))
    assert long == pytest.approx(3 * short, rel=1e-3)
    assert [box.attrib["class"] for box in svg.iter("rect")] == ["c1", "c2"]
    (mark,) = [line for line in svg.iter("line") if line.attrib["class"] == "mark"]
    assert float(mark.attrib["x1"]) - NAMES == pytest.approx(2 * short, rel=1e-3)
    ends = [line for line in svg.iter("line") if line.attrib["class"] == "interval"]
    assert float(ends[0].attrib["x1"]) == pytest.approx(float(mark.attrib["x1"]), abs=0.02)
    assert "1.50" in {label.text for label in svg.iter("text")}


def test_a_range_has_a_mark_for_each_percentile() -> None:
    svg = drawing(
        chart("TTFT", [Group("all", [Range("sd", (10, 20, 50), "10 / 20 / 50")])], COLOURS)
    )
    places = [float(dot.attrib["cx"]) - NAMES for dot in svg.iter("circle")]
    assert places[1] == pytest.approx(2 * places[0], rel=1e-3)
    assert places[2] == pytest.approx(5 * places[0], rel=1e-3)


def test_a_long_name_stays_in_its_column() -> None:
    """Categories are named by the data set."""
    svg = drawing(chart("any", [Group("long " * 40, [Bar("sd", 1.0, "1")])], COLOURS))
    (name,) = [label.text for label in svg.iter("text") if label.attrib["x"] == "0"]
    assert name is not None
    assert len(name) <= MOST_LETTERS


def test_nothing_is_drawn_of_nothing() -> None:
    assert chart("empty", [Group("qa", [])], COLOURS) == ""


@given(st.lists(figures, min_size=1, max_size=5), st.none() | st.floats(0.5, 2))
def test_all_of_it_lies_on_the_drawing(values: list[float], reference: float | None) -> None:
    """A scale of 0, or one far beyond its values, would put marks outside or nowhere."""
    rows = [Bar("sd", value, "x", low=value / 2, high=value * 1.5) for value in values]
    svg = drawing(chart("any", [Group("qa", rows)], COLOURS, reference=reference))
    places = [float(line.attrib[x]) for line in svg.iter("line") for x in ("x1", "x2")]
    places += [float(b.attrib["x"]) + float(b.attrib["width"]) for b in svg.iter("rect")]
    rounding = 0.02  # of a place and a width, each in hundredths
    assert all(NAMES - rounding <= place <= WIDTH - RIGHT + rounding for place in places)
    ticks = [line for line in svg.iter("line") if line.attrib["class"] == "grid"]
    assert 2 <= len(ticks) <= 9
