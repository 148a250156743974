"""The picture of a stretch of a trace."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from runtime.trace.picture import LEFT, RIGHT, WIDTH, draw
from runtime.trace.timeline import Timeline

SVG = "{http://www.w3.org/2000/svg}"


def sample() -> Timeline:
    timeline = Timeline()
    timeline.span("draft", "prepare", 0.002, 0.008)
    timeline.span("target", "verify", 0.0, 0.010)
    timeline.span("target", "<odd & label>", 0.010, 0.020)
    timeline.moment("hit", 0.010, row=0)
    timeline.moment("miss", 0.019, row=0)
    return timeline


def test_lanes_bars_and_notes_are_drawn_target_first() -> None:
    root = ElementTree.fromstring(draw(sample(), 0.0, 0.020))
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert texts.index("target") < texts.index("draft")
    assert {"verify", "prepare", "hit", "miss", "<odd & label>"} <= set(texts)
    assert "verify: 10.00 ms" in {element.text for element in root.iter(f"{SVG}title")}


@given(start=st.integers(0, 19), length=st.integers(1, 30))
def test_nothing_is_drawn_outside_the_frame(start: int, length: int) -> None:
    root = ElementTree.fromstring(draw(sample(), start / 1e3, (start + length) / 1e3))
    for bar in [r for r in root.iter(f"{SVG}rect") if r.get("rx")]:
        left = float(bar.attrib["x"])
        assert left >= LEFT
        assert left + float(bar.attrib["width"]) <= WIDTH - RIGHT + 1


def test_times_count_from_the_first_round() -> None:
    late = Timeline()
    late.span("target", "load target", 0.0, 5.0)
    late.span("target", "verify", 5.0, 5.010)
    texts = [
        element.text
        for element in ElementTree.fromstring(draw(late, 0.0, 0.010)).iter(f"{SVG}text")
    ]
    assert "verify" in texts
    assert "load target" not in texts
    assert {"0 ms", "10 ms"} <= set(texts)
    before = draw(late, -1.0, 0.0)
    assert "load target" in before
    assert "-1000 ms" in before


def test_an_endless_stretch_is_cut_to_the_records() -> None:
    whole = draw(sample(), 0.0, 0.020)
    assert draw(sample(), float("-inf"), float("inf")) == whole


def test_a_stretch_without_work_is_refused() -> None:
    for start, end in ((5.0, 6.0), (0.01, 0.01), (0.01, 0.0), (float("nan"), 0.02)):
        with pytest.raises(UsageError, match="--from"):
            draw(sample(), start, end)
    with pytest.raises(UsageError, match="--from"):
        draw(Timeline(), 0.0, 1.0)
