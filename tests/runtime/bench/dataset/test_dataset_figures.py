"""A data set's figures: against samples whose figures are known, and turns that are fair."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from runtime.bench.dataset.contestant import Block, Listener, Sample
from runtime.bench.dataset.figures import (
    acceptance_by_place,
    by_category,
    paired_ratios,
    percentiles,
)
from runtime.bench.dataset.items import Item
from runtime.bench.dataset.record import vllm_names
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundPlan, RoundReport, RowReport
from tests.helpers.dataset_report import FACTS, figures_of

ITEMS = [Item("qa", "a", 1), Item("rag", "b", 2), Item("qa", "c", 3)]


def sample(
    tokens: Sequence[int],
    decode_s: float,
    blocks: Sequence[tuple[int, int, int]] = (),
    *,
    hits: Sequence[bool | None] = (),
    mode: str = "ssd",
) -> Sample:
    """``blocks``: (tokens, drafted, accepted), one every tenth of a second; else all in one."""
    if tokens and not blocks:
        blocks = [(len(tokens), 0, 0)]
    known = [*hits, *[None] * (len(blocks) - len(hits))]
    found = tuple(
        Block(100 + 0.1 * (i + 1), *block, known[i], mode) for i, block in enumerate(blocks)
    )
    return Sample(tuple(tokens), 100.0, decode_s, found)


def once(samples: Sequence[Sample]) -> list[list[Sample]]:
    """One pass."""
    return [[each] for each in samples]


def test_speeds_are_of_all_tokens_and_ratios_of_the_same_prompts() -> None:
    plain = [sample(range(10), 1.0), sample(range(10), 4.0), sample(range(30), 3.0)]
    ours = [sample(range(10), 0.5), sample(range(10), 8.0), sample(range(30), 3.5)]
    qa, rag, overall = by_category(ITEMS, {"ar": once(plain), "ssd": once(ours)})
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
    (only,) = by_category(ITEMS[:1], {"ar": [[sample([1], 1.0)]]})
    assert only.name == "qa"


def test_rounds_hits_and_latencies() -> None:
    blocks = [(1, 0, 0), (3, 2, 2), (1, 2, 0)]
    answers = [sample(range(5), 1.0, blocks, hits=[None, True, False])]
    (found,) = by_category(ITEMS[:1], {"ssd": once(answers)})[0].contestants
    assert (found.num_rounds, found.acceptance_length) == (3, pytest.approx(5 / 3))
    assert (found.num_drafted, found.num_accepted, found.acceptance_rate) == (4, 2, 0.5)
    assert found.hit_rate == 0.5
    assert found.acceptance == (0.5, 0.5)
    assert found.ttft_ms.p50 == pytest.approx(100)
    assert found.itl_ms.num == 2
    assert found.itl_ms.p99 == pytest.approx(100)
    assert found.tpot_ms.p50 == pytest.approx(50)
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
    answers = {"ar": once(plain), "sd": once(ours)}
    found = by_category(ITEMS, answers)
    assert [each.contestants[1].num_differing for each in found] == [1, 1, 2]
    report = figures_of(found)
    assert not report.is_identical
    assert "sd: tokens differ on 2 prompts" in report.as_text()
    same = figures_of(by_category(ITEMS, {"ar": once(plain)}), lines_left_out=(5,))
    assert same.is_identical
    assert "lines 5" in same.as_text()
    peers = figures_of(by_category(ITEMS, answers, ["sd"]))
    assert peers.is_identical, "a peer may differ"
    assert "sd: the same tokens on 1 of 3 prompts" in peers.as_text()


def test_a_mode_that_differs_from_itself_is_told() -> None:
    """Passes of one mode are one text."""
    plain = [[sample([1, 2], 1.0), sample([1, 3], 1.0)], *once([sample([1], 1.0)] * 2)]
    report = figures_of(by_category(ITEMS, {"ar": plain}))
    assert not report.is_identical
    assert "ar: differs from itself on 1 prompts" in report.as_text()


def test_the_lowest_category_is_named() -> None:
    plain = [sample([1, 2], 1.0) for _ in ITEMS]
    ours = [sample([1, 2], seconds) for seconds in (0.5, 2.0, 0.5)]
    found = by_category(ITEMS, {"ar": once(plain), "auto": once(ours)})
    assert "auto: lowest speed-up 0.500 (-), in rag" in figures_of(found).as_text()


def test_a_prompt_counts_with_its_median_pass() -> None:
    """One pass of three that something disturbed moves nothing, on either side."""
    plain = [[sample(range(10), seconds) for seconds in (1.0, 9.0, 1.0)]]
    ours = [[sample(range(10), seconds) for seconds in (0.5, 0.5, 7.0)]]
    (found,) = by_category(ITEMS[:1], {"ar": plain, "sd": ours})
    assert found.contestants[1].ratio == 2.0
    assert found.contestants[1].median_ratio == 2.0
    assert found.contestants[1].num_tokens == 10


def test_ratios_are_of_the_same_pass() -> None:
    """The machine slowed down threefold between two passes; neither side gained anything."""
    plain = [[sample(range(10), 1.0), sample(range(10), 3.0)] for _ in ITEMS]
    ours = [[sample(range(10), 2.0), sample(range(10), 6.0)] for _ in ITEMS]
    found = by_category(ITEMS, {"ar": plain, "sd": ours})[-1].contestants[1]
    assert found.median_ratio == 0.5
    assert found.median_interval is not None
    assert found.median_interval.low == found.median_interval.high == 0.5


def test_an_unfinished_pass_is_left_out_of_ratios() -> None:
    plain = [[sample([1], 1.0), sample([1], 1.0)]]
    ours = [[sample([1], 0.5)]]
    assert list(paired_ratios(ours, plain)) == [2.0]


def test_prompts_without_a_token_have_no_ratio() -> None:
    """The model ended the text at once; no tokens are no slowdown."""
    plain = once([sample([], 0.0), sample([1, 2], 1.0), sample([1, 2], 1.0)])
    found = by_category(ITEMS, {"ar": plain, "sd": plain})
    assert found[0].contestants[1].ratio == 1.0
    (nothing,) = by_category(ITEMS[:1], {"ar": plain[:1], "sd": plain[:1]})
    assert nothing.contestants[1].ratio is None
    assert nothing.contestants[1].median_ratio is None
    assert "lowest speed-up" not in figures_of((nothing,)).as_text()
    mixed = figures_of(by_category(ITEMS[:2], {"ar": plain[:2], "sd": plain[:2]}))
    assert "sd: lowest speed-up 1.000 (-), in rag" in mixed.as_text(), "qa has none"


def test_names_of_vllm_are_those_of_its_readers() -> None:
    (found,) = by_category(
        ITEMS[:1], {"ssd": once([sample(range(5), 1.0, [(1, 0, 0), (4, 4, 3)])])}
    )
    record = vllm_names(found.contestants[0], found.num_prompts)
    assert record["spec_decode_acceptance_rate"] == 75.0
    assert record["spec_decode_acceptance_length"] == 4, "of the round that had drafts"
    assert record["spec_decode_num_drafts"] == 1
    assert record["output_throughput"] == pytest.approx(5 / 0.2), "from the request on"
    assert record["median_ttft_ms"] == pytest.approx(100)
    assert {"p99_itl_ms", "mean_tpot_ms", "completed"} <= set(record)
    plain = by_category(ITEMS[:1], {"ar": once([sample([1], 1.0, [(1, 0, 0)])])})[0].contestants[0]
    assert not any("spec" in name for name in vllm_names(plain, 1))


def test_the_report_says_what_was_run() -> None:
    found = by_category(ITEMS, {"ar": once([sample([1, 2], 1.0) for _ in ITEMS])})
    report = figures_of(found, num_planned=12, num_done=7, notes={"ar": "on one core"})
    text = report.as_text()
    assert FACTS.as_text() in text
    assert "interrupted after 7 of 12 answers" in text
    assert "ar: on one core" in text
    assert "by place" not in text, "nobody drafted"
    assert report.as_record()["is_interrupted"]
    assert not {"hit rate", "peers"} & report.explains


def test_a_listener_keeps_what_rounds_gave() -> None:
    listener = Listener()
    row = RowReport(0, ProposalKind.HIT, 4, 2, True, num_emitted=3)
    listener(RoundReport(1, (row,), RoundPlan("ssd", 4, 6)))
    (block,) = listener.blocks
    assert (block.num_tokens, block.num_drafted, block.accepted) == (3, 4, 2)
    assert (block.hit, block.mode) == (True, "ssd")


@pytest.mark.parametrize(
    ("num_emitted", "expected"), [(2, (2, 2)), (3, (3, 3)), (4, (4, 3))], ids=str
)
def test_drafts_behind_the_end_of_a_text_are_not_counted(num_emitted, expected) -> None:
    """Of 4 drafts 3 were accepted; the text ended with the second, the third, or the bonus."""
    listener = Listener()
    row = RowReport(0, ProposalKind.JIT, 4, 3, None, num_emitted=num_emitted)
    listener(RoundReport(1, (row,), RoundPlan("sd", 4, 6)))
    (block,) = listener.blocks
    assert (block.num_drafted, block.accepted) == expected


def test_the_token_that_ends_a_text_is_a_token_of_its_time() -> None:
    """Its round is timed: without it each of the others looked slower, a short text's most."""
    ended = sample(range(4), 0.5, [(1, 0, 0)] * 5, mode="ar")
    (found,) = by_category(ITEMS[:1], {"ar": once([ended])})[0].contestants
    assert found.tpot_ms.p50 == pytest.approx(100)
    assert found.tokens_s == 10.0
    assert found.num_tokens == 5


def test_a_failure_is_said_in_the_place_of_an_interruption() -> None:
    found = by_category(ITEMS, {"ar": once([sample([1, 2], 1.0) for _ in ITEMS])})
    report = figures_of(found, num_planned=12, num_done=7, failure="sd failed: out of memory")
    assert "sd failed: out of memory; after 7 of 12 answers" in report.as_text()
    assert not report.is_interrupted
