"""A data set's figures: against samples whose figures are known, and turns that are fair."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.bench.dataset.contestant import Block, Listener, Sample
from runtime.bench.dataset.figures import acceptance_by_place, by_category, percentiles
from runtime.bench.dataset.items import Item
from runtime.bench.dataset.report import DatasetFigures
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundPlan, RoundReport, RowReport

ITEMS = [Item("qa", "a", 1), Item("rag", "b", 2), Item("qa", "c", 3)]


def sample(
    tokens: Sequence[int],
    decode_s: float,
    blocks: Sequence[tuple[int, int, int]] = (),
    *,
    hits: Sequence[bool | None] = (),
    mode: str = "ssd",
) -> Sample:
    """``blocks``: (tokens, drafted, accepted), one every tenth of a second."""
    known = [*hits, *[None] * (len(blocks) - len(hits))]
    found = tuple(
        Block(100 + 0.1 * (i + 1), *block, known[i], mode) for i, block in enumerate(blocks)
    )
    return Sample(tuple(tokens), 100.0, decode_s, found)


def test_speeds_are_of_all_tokens_and_ratios_of_the_same_prompts() -> None:
    plain = [sample(range(10), 1.0), sample(range(10), 4.0), sample(range(30), 3.0)]
    ours = [sample(range(10), 0.5), sample(range(10), 8.0), sample(range(30), 3.5)]
    qa, rag, overall = by_category(ITEMS, {"ar": plain, "ssd": ours})
    assert [each.name for each in (qa, rag, overall)] == ["qa", "rag", "overall"]
    assert [each.num_prompts for each in (qa, rag, overall)] == [2, 1, 3]
    baseline, found = qa.contestants
    assert (baseline.ratio, baseline.median_ratio) == (None, None)
    assert baseline.tokens_s == 40 / 4
    assert found.tokens_s == 40 / 4.0
    assert found.ratio == 1.0
    assert found.median_ratio == pytest.approx((2 + 3 / 3.5) / 2)
    assert rag.contestants[1].ratio == 0.5
    assert overall.contestants[1].ratio == pytest.approx((50 / 12) / (50 / 8))


def test_one_category_needs_no_sum() -> None:
    (only,) = by_category(ITEMS[:1], {"ar": [sample([1], 1.0)]})
    assert only.name == "qa"


def test_rounds_hits_and_latencies() -> None:
    blocks = [(1, 0, 0), (3, 2, 2), (1, 2, 0)]
    answers = [sample(range(5), 1.0, blocks, hits=[None, True, False])]
    (found,) = by_category(ITEMS[:1], {"ssd": answers})[0].contestants
    assert (found.num_rounds, found.tokens_round) == (3, pytest.approx(5 / 3))
    assert found.hit_rate == 0.5
    assert found.acceptance == (0.5, 0.5)
    assert found.ttft_ms.p50 == pytest.approx(100)
    assert found.itl_ms.num == 2
    assert found.itl_ms.p99 == pytest.approx(100)
    assert found.num_rounds_by_mode == {"ssd": 3}


def test_acceptance_by_place_counts_a_place_where_it_was_drafted() -> None:
    """A short proposal says nothing about the places that it does not have."""
    found = acceptance_by_place([sample([1], 1.0, [(2, 1, 1), (1, 3, 0), (4, 3, 3), (3, 3, 2)])])
    assert found == (3 / 4, 2 / 3, 1 / 3)


def test_percentiles_of_nothing_are_unknown() -> None:
    assert percentiles([]).p50 is None
    assert percentiles([1.0, 2.0, 3.0]).p50 == 2.0
    assert percentiles([0.0, 100.0]).p90 == 90.0


def test_differing_tokens_are_counted_and_said() -> None:
    plain = [sample([1, 2], 1.0) for _ in ITEMS]
    ours = [sample([1, 2], 1.0), sample([1, 3], 1.0), sample([1], 1.0)]
    found = by_category(ITEMS, {"ar": plain, "sd": ours})
    assert [each.contestants[1].num_differing for each in found] == [1, 1, 2]
    report = DatasetFigures("set", 9, 0.0, (), {}, found, ())
    assert not report.is_identical
    assert "sd: tokens differ on 2 prompts" in report.as_text()
    same = DatasetFigures("set", 9, 0.0, (5,), {}, by_category(ITEMS, {"ar": plain}), ())
    assert same.is_identical
    assert "lines 5" in same.as_text()


def test_the_lowest_category_is_named() -> None:
    plain = [sample([1, 2], 1.0) for _ in ITEMS]
    ours = [sample([1, 2], seconds) for seconds in (0.5, 2.0, 0.5)]
    found = by_category(ITEMS, {"ar": plain, "auto": ours})
    text = DatasetFigures("set", 9, 0.0, (), {}, found, ()).as_text()
    assert "auto: lowest ratio 0.500, in rag" in text


def test_a_listener_keeps_what_rounds_gave() -> None:
    listener = Listener()
    row = RowReport(0, ProposalKind.HIT, 4, 2, True, num_emitted=3)
    listener(RoundReport(1, (row,), RoundPlan("ssd", 4, 6)))
    (block,) = listener.blocks
    assert (block.num_tokens, block.num_drafted, block.accepted) == (3, 4, 2)
    assert (block.hit, block.mode) == (True, "ssd")
