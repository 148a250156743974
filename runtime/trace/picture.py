"""A stretch of a timeline as an SVG: one row a lane, hits and misses above them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from engines.errors import UsageError
from runtime.trace.timeline import Moment, Span, Timeline

WIDTH, LEFT, RIGHT = 960, 64, 12
LANE_HEIGHT, BAR_HEIGHT, TOP, BOTTOM = 44, 26, 46, 34
COLOURS = {
    "verify": "#3b6fb6",
    "prompt": "#9a9a9a",
    "root": "#d98b2b",
    "prepare": "#e0a24e",
    "draft": "#b5651d",
    "adopt": "#7a4fa3",
    "commit": "#4f9d69",
}
OTHER = "#888888"
NOTES = {"hit": "#2e7d32", "miss": "#c62828"}
MIN_LABEL_WIDTH = 34
"""Narrower bars carry no text."""


def draw(timeline: Timeline, start_s: float, end_s: float) -> str:
    """The records between two times as SVG text, seconds from the first round's start.

    What lies before the first record or after the last is left away. Raises UsageError when
    nothing lies between the two.
    """
    zero = first_round(timeline)
    first = min((span.start_s for span in timeline.spans), default=0.0)
    last = max((span.end_s for span in timeline.spans), default=0.0)
    begin, end = max(zero + start_s, first), min(zero + end_s, last)
    spans = [span for span in timeline.spans if span.end_s > begin and span.start_s < end]
    if not spans or not begin < end:  # NaN too
        raise UsageError(
            f"the trace has no work between {start_s * 1e3:g} and {end_s * 1e3:g} ms, it ends at "
            f"{(last - zero) * 1e3:.0f}; choose other --from and --to"
        )
    moments = [m for m in timeline.moments if begin <= m.at_s < end]
    lanes = _lanes(spans)
    height = TOP + LANE_HEIGHT * len(lanes) + BOTTOM
    scale = _Scale(begin, end)
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        *_axis(scale, begin, end, zero, height),
    ]
    for index, lane in enumerate(lanes):
        top = TOP + LANE_HEIGHT * index
        parts.append(_text(LEFT - 8, top + BAR_HEIGHT // 2 + 4, lane, anchor="end"))
        parts += [_bar(span, scale, top) for span in spans if span.lane == lane]
    parts += [_note(moment, scale) for moment in moments if moment.label in NOTES]
    return "\n".join([*parts, "</svg>", ""])


def first_round(timeline: Timeline) -> float:
    """When the first verification began; the first record's start where there is none."""
    rounds = [span.start_s for span in timeline.spans if span.label == "verify"]
    return min(rounds or [span.start_s for span in timeline.spans], default=0.0)


class _Scale:
    """Times to pixels, cut to the drawn stretch."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._per_s = begin, (WIDTH - LEFT - RIGHT) / (end - begin)

    def x(self, at_s: float) -> float:
        pixels = LEFT + (at_s - self._begin) * self._per_s
        return round(min(max(pixels, LEFT), WIDTH - RIGHT), 1)


def _lanes(spans: Sequence[Span]) -> list[str]:
    """The target first, as in every figure of the field; the others as they appear."""
    found = list(dict.fromkeys(span.lane for span in spans))
    return sorted(found, key=lambda lane: lane != "target")


def _axis(scale: _Scale, begin: float, end: float, zero: float, height: int) -> list[str]:
    """Ticks at round times from the first round on."""
    step = _tick((end - begin) * 1e3)
    parts = []
    first = math.ceil((begin - zero) * 1e3 / step - 1e-9)
    for number in range(first, math.floor((end - zero) * 1e3 / step + 1e-9) + 1):
        at = number * step
        x = scale.x(zero + at / 1e3)
        parts.append(
            f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{height - BOTTOM + 4}" stroke="#e3e3e3"/>'
        )
        parts.append(_text(x, height - BOTTOM + 18, f"{at:g} ms"))
    return parts


def _tick(span_ms: float) -> float:
    """A round distance between ticks, so that there are five to twelve of them."""
    step = 0.01
    while span_ms / step > 12:
        step *= 2.5 if f"{step:e}".startswith("2") else 2
    return step


def _bar(span: Span, scale: _Scale, top: int) -> str:
    left, right = scale.x(span.start_s), scale.x(span.end_s)
    width = max(0.8, round(right - left, 1))
    told = f"{span.label}: {(span.end_s - span.start_s) * 1e3:.2f} ms"
    bar = (
        f'<rect x="{left}" y="{top}" width="{width}" height="{BAR_HEIGHT}" rx="2" '
        f'fill="{COLOURS.get(span.label, OTHER)}"><title>{escape(told)}</title></rect>'
    )
    if width < MIN_LABEL_WIDTH:
        return bar
    text = _text(left + width / 2, top + BAR_HEIGHT // 2 + 4, span.label, fill="#ffffff")
    return bar + text


def _note(moment: Moment, scale: _Scale) -> str:
    x, colour = scale.x(moment.at_s), NOTES[moment.label]
    return (
        f'<line x1="{x}" y1="22" x2="{x}" y2="{TOP - 2}" stroke="{colour}" stroke-width="1.5"/>'
        + _text(x, 16, moment.label, fill=colour)
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", fill: str = "#333333") -> str:
    return (
        f'<text x="{round(x, 1)}" y="{round(y, 1)}" text-anchor="{anchor}" fill="{fill}">'
        f"{escape(text)}</text>"
    )
