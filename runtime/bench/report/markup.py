"""HTML and SVG from Python values; every text is escaped unless it is Markup already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from engines.errors import escaped


class Markup(str):
    """Text that is HTML or SVG."""

    __slots__ = ()


def text(value: str) -> Markup:
    """``value`` as its reader shall see it; what a browser or terminal would obey is spelled out
    (controls, marks that turn the writing direction, halves of characters)."""
    return Markup(escape(escaped(value), quote=True))


def element(name: str, *parts: str, **attributes: object) -> Markup:
    """``<name attribute="...">parts</name>``. A ``_`` in an attribute's name is a ``-``; one that
    is None is left out, and one at a name's end is dropped (``class_``)."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{joined(parts)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """One after the other."""
    return Markup("".join(part if isinstance(part, Markup) else text(part) for part in parts))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, num_names: int) -> Markup:
    """The first ``num_names`` columns are names, the others figures. A row whose first cell
    differs from that of the row before begins a group, and only it shows that cell."""
    cells = [element("th", header, scope="col") for header in headers]
    body = []
    before = None
    for row in rows:
        is_new = row[0] != before
        before = row[0]
        shown = [row[0] if is_new or num_names < 2 else "", *row[1:]]
        columns = [
            element("th", cell, scope="row") if place < num_names else element("td", cell)
            for place, cell in enumerate(shown)
        ]
        body.append(element("tr", *columns, class_="group" if is_new else None))
    whole = element("table", element("thead", element("tr", *cells)), element("tbody", *body))
    return element("div", whole, class_="wide")


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
