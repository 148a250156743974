"""The page of a data set: whole, of one file, and nothing of a prompt runs in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from runtime.bench.dataset.contestant import Block, Sample
from runtime.bench.dataset.figures import by_category
from runtime.bench.dataset.items import Item
from runtime.bench.dataset.kind import FORMULAS
from runtime.bench.dataset.report import DatasetFigures, PromptRecord
from runtime.bench.report.style import CSS, NUM_COLOURS
from tests.helpers.dataset_report import figures_of

HEADER = {"command": "python -m runtime bench", "machine": "M & N", "versions": "numpy 2"}
EVIL = '</td><script>alert("x")</script><img src=x onerror=alert(1)>&amp;\u202e'
VOID = {"meta", "br", "hr"}
FETCHING = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image"}


class Page(HTMLParser):
    """Every element is closed in its place; what tags and attributes there are."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.data = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.data += data + " "


def sample(speed: float, drafted: int) -> Sample:
    blocks = tuple(Block(1 + i / speed, 2, drafted, drafted // 2, None, "sd") for i in range(4))
    return Sample(tuple(range(8)), 0.0, 4 / speed, blocks)


def report(*, category: str = "qa", drafted: int = 2, **more: object) -> DatasetFigures:
    items = [Item(category, "a", 1), Item("rag", "b", 2), Item(category, "c", 3)]
    answers = {
        "ar": [[sample(1, 0)] for _ in items],
        "sd": [[sample(2, drafted)] for _ in items],
        "llama.cpp": [[sample(3, 0)] for _ in items],
    }
    record = PromptRecord(1, category, EVIL, "ar", 1, 5, 8, 4, 1.0, None)
    return figures_of(by_category(items, answers, ["llama.cpp"]), prompts=(record,), **more)


def test_the_page_is_whole_and_fetches_nothing() -> None:
    text = report().as_html(HEADER, FORMULAS)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert not FETCHING & set(page.tags)
    assert not {"src", "href", "style", "onclick", "onload"} & set(page.attributes)
    assert "default-src 'none'" in text
    assert not re.search(r"url\(|@import|https?://", text)
    assert page.tags.count("svg") == 6
    assert page.tags.count("table") == 4


def test_what_a_prompt_holds_stays_text() -> None:
    for text in (
        report().as_html(HEADER, FORMULAS),
        report(category=EVIL[:-1]).as_html(HEADER, {}),
    ):
        page = Page(text)
        assert "script" not in page.tags
        assert "img" not in page.tags
        assert 'alert("x")' in page.data


def test_it_says_what_was_measured_and_how() -> None:
    facts = {"notes": {"sd": "on one core"}, "descriptions": {"llama.cpp": "q8_0, threads: 2"}}
    data = Page(report(**facts).as_html(HEADER, FORMULAS)).data
    for expected in (
        "M & N",
        "numpy 2",
        "$ python -m runtime bench",
        "on one core",
        "q8_0, threads",
    ):
        assert expected in data
    for name, formula in FORMULAS.items():
        assert name in data
        assert formula in data
    assert "sd: identical tokens on every prompt" in data
    assert "llama.cpp: the same tokens on 3 of 3 prompts" in data
    assert "2.000" in data


def test_a_run_that_was_cut_short_says_so() -> None:
    text = report(num_planned=20, num_done=9).as_html(HEADER, {})
    assert 'class="warning">interrupted after 9 of 20' in text


def test_without_drafts_there_is_nothing_about_them() -> None:
    page = Page(report(drafted=0).as_html(HEADER, {}))
    assert "acceptance by position" not in page.data
    assert page.tags.count("svg") == 4


@pytest.mark.parametrize("place", range(NUM_COLOURS))
def test_each_colour_has_a_light_and_a_dark_form(place: int) -> None:
    assert len(re.findall(rf"--c{place}: #[0-9a-f]{{6}};", CSS)) == 2
    assert f".c{place} {{ fill: var(--c{place})" in CSS
