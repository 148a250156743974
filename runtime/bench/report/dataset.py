"""The page of a data set's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from runtime.bench.dataset.tables import DRAFTS, LATENCY, SPEED, drafts
from runtime.bench.report.charts import Bar, Colours, Group, Range, chart, legend
from runtime.bench.report.markup import Markup, element, joined, table
from runtime.bench.report.style import CSS, NUM_COLOURS
from runtime.cli.report import number

if TYPE_CHECKING:
    from runtime.bench.dataset.figures import CategoryFigures, ContestantFigures, Percentiles
    from runtime.bench.dataset.report import DatasetFigures

TITLE = "ssd-trt benchmark"
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Whatever stands in it, the page fetches nothing and runs nothing."""
PROMPT_HEADERS = (
    *("category", "line", "prompt", "contestant", "pass", "prompt tokens", "tokens"),
    *("rounds", "decode s", "TTFT s"),
)
LATENCIES: tuple[tuple[str, Callable[[ContestantFigures], Percentiles]], ...] = (
    ("TTFT: milliseconds to the first token; dots are p50, p90, p99", lambda each: each.ttft_ms),
    ("TPOT: milliseconds a token behind the first", lambda each: each.tpot_ms),
    ("ITL: milliseconds between two arrivals", lambda each: each.itl_ms),
)


def dataset_page(
    figures: DatasetFigures, header: Mapping[str, str], formulas: Mapping[str, str]
) -> str:
    """One HTML file. ``header`` has command, machine and versions, by name."""
    names = [each.name for each in figures.total.contestants]
    colours = {name: place % NUM_COLOURS for place, name in enumerate(names)}
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{TITLE}: {figures.bundle.name} on {figures.dataset}"),
        element("style", Markup(CSS)),
    )
    body = element(
        "body",
        element("h1", f"{figures.bundle.name} on {figures.dataset}"),
        *_opening(figures),
        legend(colours),
        *_speed(figures, colours),
        *_drafts(figures, colours),
        *_latency(figures, colours),
        *_method(figures, header, formulas),
        _prompts(figures),
    )
    page = element("html", head, body, lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _opening(figures: DatasetFigures) -> Iterator[Markup]:
    asked, *limits = figures.summary()
    yield element("p", asked, class_="soft")
    yield element("p", figures.bundle.as_text(), class_="soft")
    for limit in limits:
        yield element("p", limit, class_="warning")
    if not figures.is_identical:
        yield element("p", "tokens differ between modes; see below", class_="warning")
    yield element("ul", *(element("li", line) for line in figures.verdicts()))


def _speed(figures: DatasetFigures, colours: Colours) -> Iterator[Markup]:
    baseline = figures.total.contestants[0].name
    yield element("h2", f"Speed-up over {baseline}")
    yield chart(
        f"tokens/s / tokens/s of {baseline} in the same run, with the 95 % interval; the line is 1",
        [Group(part.name, [*_ratios(part)]) for part in figures.categories],
        colours,
        reference=1.0,
    )
    yield table(SPEED.headers, SPEED.rows(figures.categories), num_names=2)


def _ratios(part: CategoryFigures) -> Iterator[Bar]:
    for each in part.contestants:
        if each.ratio is not None:
            interval = each.ratio_interval
            ends = (None, None) if interval is None else (interval.low, interval.high)
            yield Bar(each.name, each.ratio, f"{each.ratio:.2f}", *ends)


def _drafts(figures: DatasetFigures, colours: Colours) -> Iterator[Markup]:
    rows = DRAFTS.rows(figures.categories)
    if not rows:
        return
    yield element("h2", "Drafts")
    yield chart(
        "acceptance by position: accepted / drafted at that place of a proposal, all prompts",
        [*_places(figures.total)],
        colours,
    )
    yield chart(
        "acceptance length: tokens a verification, bonus token included",
        [
            Group(
                part.name,
                [
                    Bar(each.name, each.acceptance_length, f"{each.acceptance_length:.2f}")
                    for each in part.contestants
                    if drafts(each)
                ],
            )
            for part in figures.categories
        ],
        colours,
    )
    yield table(DRAFTS.headers, rows, num_names=2)


def _places(total: CategoryFigures) -> Iterator[Group]:
    for place in range(max(len(each.acceptance) for each in total.contestants)):
        bars = [
            Bar(each.name, each.acceptance[place], f"{each.acceptance[place]:.2f}")
            for each in total.contestants
            if place < len(each.acceptance)
        ]
        yield Group(f"position {place + 1}", bars)


def _latency(figures: DatasetFigures, colours: Colours) -> Iterator[Markup]:
    yield element("h2", "Latency")
    for title, of in LATENCIES:
        rows = [
            Range(each.name, marks, " / ".join(f"{mark:.0f}" for mark in marks))
            for each in figures.total.contestants
            if (marks := _marks(of(each)))
        ]
        yield chart(title, [Group("all prompts", rows)], colours)
    yield table(LATENCY.headers, LATENCY.rows(figures.categories), num_names=2)


def _marks(values: Percentiles) -> tuple[float, ...]:
    return tuple(each for each in (values.p50, values.p90, values.p99) if each is not None)


def _method(
    figures: DatasetFigures, header: Mapping[str, str], formulas: Mapping[str, str]
) -> Iterator[Markup]:
    facts = dict(header)
    yield element("h2", "How it was measured")
    yield element("pre", f"$ {facts.pop('command')}")
    yield _terms(facts | figures.descriptions)
    if figures.notes:
        yield element("h2", "Notes")
        yield _terms(figures.notes)
    yield element("h2", "Formulas")
    yield _terms(formulas)


def _terms(entries: Mapping[str, str]) -> Markup:
    pairs = ((element("dt", name), element("dd", what)) for name, what in entries.items())
    return element("dl", *(joined(pair) for pair in pairs))


def _prompts(figures: DatasetFigures) -> Markup:
    rows = [
        [
            each.category,
            str(each.line),
            each.text,
            each.contestant,
            str(each.number_of_pass),
            str(each.num_prompt_tokens),
            str(each.num_tokens),
            str(each.num_rounds),
            number(each.decode_s, 3),
            number(each.ttft_s, 3),
        ]
        for each in figures.prompts
    ]
    return element(
        "details",
        element("summary", f"All {len(rows)} answers"),
        table(PROMPT_HEADERS, rows, num_names=4),
    )
