"""Bars and ranges as inline SVG, in the colours of ``style``.

Drawn by hand, since two simple forms are all that a report needs, and it should need no package.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runtime.bench.report.markup import Markup, element
from runtime.cli.prompts import shortened

WIDTH, NAMES, RIGHT = 760.0, 190.0, 76.0
"""Of the drawing, of the names on its left, of the figures on its right."""
BAR, GAP, HEAD = 15.0, 12.0, 22.0
MOST_TICKS = 8
MOST_LETTERS = 26
"""Of a name, in its column."""


@dataclass(frozen=True, slots=True)
class Bar:
    """``label`` names its colour. ``low`` and ``high`` are the ends of its interval."""

    label: str
    value: float
    shown: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """Marks on a line, such as percentiles, in rising order."""

    label: str
    marks: tuple[float, ...]
    shown: str


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one name."""

    name: str
    rows: Sequence[Bar | Range]


Colours = Mapping[str, int]
"""By label, the number of its colour."""


def chart(
    title: str, groups: Sequence[Group], colours: Colours, *, reference: float | None = None
) -> Markup:
    """Rows of one scale from 0; ``reference`` is a value to compare all with. Empty without a
    row."""
    drawn = [group for group in groups if group.rows]
    if not drawn:
        return Markup()
    most = max(_most(row) for group in drawn for row in group.rows)
    scale = _Scale(max(most, reference or 0.0) * 1.02 or 1.0)
    parts: list[Markup] = []
    top = HEAD
    for group in drawn:
        middle = top + BAR * len(group.rows) / 2
        parts.append(_label(shortened(group.name, MOST_LETTERS), 0.0, middle, "start"))
        for row in group.rows:
            parts.append(_row(row, top, scale, colours))
            top += BAR
        top += GAP
    grid = [*_ticks(scale, top)]
    if reference is not None:
        place = scale.place(reference)
        grid.append(_line(place, HEAD - 4, place, top - GAP + 4, "mark"))
    drawing = element(
        "svg",
        element("title", title),
        *grid,
        *parts,
        viewBox=f"0 0 {WIDTH:g} {top:g}",
        role="img",
    )
    return element("figure", element("figcaption", title), drawing)


def legend(colours: Colours) -> Markup:
    """Which colour is whose."""
    entries = [
        element("span", element("b", label), class_=f"c{colour}")
        for label, colour in colours.items()
    ]
    return element("div", *entries, class_="legend")


class _Scale:
    """From values to places on the drawing."""

    def __init__(self, most: float) -> None:
        self.most = most
        self._unit = (WIDTH - NAMES - RIGHT) / most

    def place(self, value: float) -> float:
        return NAMES + self._unit * value

    @property
    def step(self) -> float:
        """1, 2 or 5 times a power of ten, for at most MOST_TICKS of them."""
        power = 10.0 ** math.floor(math.log10(self.most / MOST_TICKS))
        return next(
            power * factor
            for factor in (1, 2, 5, 10, 20)
            if self.most / (power * factor) < MOST_TICKS
        )


def _most(row: Bar | Range) -> float:
    return max(row.value, row.high or 0.0) if isinstance(row, Bar) else row.marks[-1]


def _row(row: Bar | Range, top: float, scale: _Scale, colours: Colours) -> Markup:
    colour = f"c{colours[row.label]}"
    middle = top + BAR / 2
    if isinstance(row, Bar):
        end = max(row.value, row.high or 0.0)
        parts = [_box(scale.place(0), top + 1.5, scale.place(row.value), BAR - 3, colour)]
        if row.low is not None and row.high is not None:
            low, high = scale.place(row.low), scale.place(row.high)
            parts.append(_line(low, middle, high, middle, "interval"))
            parts += [_line(x, middle - 3, x, middle + 3, "interval") for x in (low, high)]
    else:
        end = row.marks[-1]
        places = [scale.place(mark) for mark in row.marks]
        parts = [_line(places[0], middle, places[-1], middle, colour)]
        parts += [_dot(place, middle, 4.0 - number, colour) for number, place in enumerate(places)]
    parts.append(_label(row.shown, scale.place(end) + 7, middle, "start", "soft"))
    return element("g", element("title", f"{row.label}: {row.shown}"), *parts)


def _ticks(scale: _Scale, bottom: float) -> list[Markup]:
    parts = []
    for number in range(int(scale.most / scale.step) + 1):
        value = number * scale.step
        place = scale.place(value)
        parts.append(_line(place, HEAD - 4, place, bottom - GAP + 4, "grid"))
        parts.append(_label(f"{value:g}", place, HEAD - 12, "middle", "soft"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _box(left: float, top: float, right: float, height: float, kind: str) -> Markup:
    width = max(0.0, right - left)
    return element("rect", x=left, y=top, width=width, height=height, class_=kind)


def _dot(x: float, y: float, radius: float, kind: str) -> Markup:
    return element("circle", cx=x, cy=y, r=radius, class_=kind)


def _label(words: str, x: float, y: float, anchor: str, kind: str | None = None) -> Markup:
    return element("text", words, x=x, y=y + 4, text_anchor=anchor, class_=kind)
