"""Markup: whatever a text holds, it stays text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from runtime.bench.report.markup import Markup, element, table, text


class Seen(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str | None] = []
        self.data = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        self.data += data


@given(st.text())
def test_a_text_is_no_markup(value: str) -> None:
    seen = Seen(element("p", value, title=value))
    assert seen.tags == ["p"]
    assert all(character.isprintable() for character in seen.data)
    if value.isprintable():
        assert seen.data == value
        assert seen.titles == [value]


def test_what_turns_the_reading_direction_is_spelled_out() -> None:
    """A prompt must not rewrite the line it stands in."""
    assert text("a\u202eb\x1b[2J\ud800") == Markup("a\\u202eb\\x1b[2J\\ud800")


def test_attributes() -> None:
    found = element("rect", x=1.5, width=2.0, class_="c1", text_anchor="end", id=None)
    assert found == '<rect x="1.5" width="2" class="c1" text-anchor="end"></rect>'


def test_a_group_of_rows_shows_its_name_once() -> None:
    rows = [["qa", "ar", "1"], ["qa", "sd", "2"], ["rag", "ar", "3"]]
    found = table(("category", "mode", "n"), rows, num_names=2)
    assert found.count(">qa<") == 1
    assert found.count('class="group"') == 2
    assert Seen(found).tags.count("td") == 3
