"""What rounds come to: what is counted, what drafts gain, and tokens' log-probabilities."""

from __future__ import annotations

import itertools

import pytest

from runtime.device.seeded import SeededDevice
from runtime.round import Rounds
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import RoundPlan
from runtime.stats import together
from tests.helpers.toy_pair import ToyPair, plain
from tests.helpers.toy_texts import GREEDY, drive, request_of, tokens_of


def test_an_empty_batch_is_no_work(make_pair, each_mode) -> None:
    requests, stats = make_pair(each_mode).generate([], [])
    assert requests == []
    assert (stats.num_tokens, stats.num_rounds, stats.acceptance_length) == (0, 0, 0.0)


def perfect_pair(mode: str, **options) -> ToyPair:
    return ToyPair(SeededDevice(0), mode, agreement=1e6, **options)


def test_tokens_behind_a_stop_are_not_acceptance() -> None:
    """E11: of a block [d1, d2, EOS, d4, d5, bonus] three tokens count, and three are discarded.
    Counting all six flatters speculation on short answers."""
    plain = tokens_of(perfect_pair("ar"), max_tokens=6)
    assert plain[2] not in plain[:2]
    pair = perfect_pair("sd", num_draft=5)
    requests, stats = pair.generate([[1, 2]], [GREEDY], max_tokens=100, stop_ids=[plain[2]])
    assert requests[0].generated == plain[:2]
    assert stats.histogram == (0, 0, 0, 0, 0, 1)
    assert (stats.num_emitted, stats.num_discarded, stats.acceptance_length) == (3, 3, 3.0)


class FixedStop:
    """Is complete at the token ``at``, and takes all tokens back but the first ``kept``."""

    def __init__(self, kept: int, at: int) -> None:
        self.kept, self.at = kept, at
        self.num_certain = self.num_pushed = 0

    def push(self, _token: int) -> int | None:
        self.num_pushed += 1
        return self.kept if self.num_pushed == self.at else None

    def flush(self) -> int | None:
        return None


@pytest.mark.parametrize("kept", range(12))
def test_tokens_of_a_stop_string_are_not_acceptance(kept: int) -> None:
    """E11, E12: of 24 emitted tokens a stop string that ends at the 11th takes back some, which
    may be whole rounds. Blocks of the perfect pair: 1, 6, 6 tokens."""
    pair = perfect_pair("sd", num_draft=5)
    at = max(11, kept)
    ticket = pair.scheduler.submit(request_of(pair, stop=FixedStop(kept, at)))
    drive(pair, ticket)
    stats = ticket.stats
    assert stats.num_tokens == stats.num_emitted == kept == len(ticket.request.generated)
    blocks = sum((k + 1) * count for k, count in enumerate(stats.histogram))
    assert stats.num_discarded == blocks - kept
    assert stats.acceptance_length == kept / stats.num_rounds
    assert 0 <= stats.num_accepted <= kept


def test_only_a_request_that_ran_alone_has_a_predicted_hit_rate() -> None:
    """The device keeps one mean for all rows: beside others it is not the request's own."""
    pair = ToyPair(SeededDevice(0), "ssd", max_batch=2)
    alone = pair.scheduler.submit(request_of(pair))
    drive(pair, alone)
    both = [pair.scheduler.submit(request_of(pair, [row + 1])) for row in range(2)]
    drive(pair, *both)
    assert alone.stats.predicted_hit_rate is not None
    assert [ticket.stats.predicted_hit_rate for ticket in both] == [None, None]
    shared = together(ticket.stats for ticket in both)
    assert shared.predicted_hit_rate is not None
    assert shared.draft_s < sum(ticket.stats.draft_s for ticket in both)


def test_nothing_is_drafted_beyond_the_budget() -> None:
    """With r tokens left r - 1 drafts are enough; the rest was drafted and verified in vain."""
    _, stats = perfect_pair("sd", num_draft=5).generate([[1, 2]], [GREEDY], max_tokens=8)
    assert (stats.num_tokens, stats.num_emitted, stats.num_discarded) == (8, 8, 0)
    assert (stats.num_drafted, stats.num_accepted) == (6, 6)
    assert stats.histogram == (0, 1, 0, 0, 0, 1)


def test_figures_of_a_batch_are_sums_over_its_rows(make_pair, each_mode) -> None:
    lengths = [(1, 30), (40, 5), (7, 17)]
    pair = make_pair(each_mode, max_batch=3)
    batch = [[1 + row] * length for row, (length, _) in enumerate(lengths)]
    requests, stats = pair.generate(batch, [GREEDY] * 3, max_tokens=30, stop_ids=[3])
    assert stats.num_tokens == sum(len(request.generated) for request in requests)
    assert stats.num_rounds == sum(stats.histogram)
    emitted = sum((k + 1) * count for k, count in enumerate(stats.histogram))
    assert stats.num_emitted + stats.num_discarded == emitted
    if each_mode == "ssd":
        # A row that has ended is a dummy: what it "decides" is neither a round nor a hit.
        known = stats.num_rounds_after_hit + stats.num_rounds_after_miss
        assert known == stats.num_rounds - 3
        assert 0 < stats.num_hits == stats.num_hits_after_hit + stats.num_hits_after_miss <= known
        assert 0 < stats.predicted_hit_rate < 1


@pytest.mark.parametrize("each_mode", ["sd", "ssd"])
def test_greedy_rows_of_a_ratio_batch_are_plain_decodings(make_pair, each_mode) -> None:
    """Their proposals carry no laws, beside rows whose proposals do."""
    prompts = [[1, 2], [3], [4, 5, 6]]
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3), GREEDY]
    plain = make_pair("ar")
    expected = [tokens_of(plain, prompts[row]) for row in (0, 2)]
    requests, stats = make_pair(each_mode, max_batch=3, verify="ratio").generate(prompts, params)
    assert [requests[0].generated, requests[2].generated] == expected
    assert stats.acceptance_length > 1.2


def test_a_perfect_draft_loses_nothing_in_a_batch_of_uneven_rows() -> None:
    """Rows grow into other buckets at other times; no row may pay for it with its hits."""
    pair = perfect_pair("ssd", max_batch=3, max_len=200, num_draft=4, num_branches=8)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(3)]
    _, stats = pair.generate([[1], [2] * 40, [3] * 90], params, max_tokens=100)
    # Each row's first round has no drafts, its last as many as still fit.
    assert sum(stats.histogram[:4]) <= 2 * 3
    assert stats.hit_rate > 0.9
    assert stats.num_accepted == stats.num_drafted


def test_rounds_beyond_a_texts_end_are_not_counted(make_pair, each_mode) -> None:
    """The host finds a stop string a round late: by then another round is under way."""
    pair = make_pair(each_mode, num_draft=3, num_branches=4)
    counted = []
    for stop in (None, FixedStop(7, 8)):
        ticket = pair.scheduler.submit(request_of(pair, max_tokens=8, stop=stop))
        drive(pair, ticket)
        counted.append((ticket.stats.num_rounds, ticket.stats.histogram))
    assert counted[0] == counted[1] or each_mode == "ssd"  # where it learns in between
    assert ticket.stats.num_emitted == 7 == len(ticket.request.generated)


def test_rounds_are_scored_only_while_somebody_asks(make_pair, each_mode, monkeypatch) -> None:
    """It is a pass over all logits of the round."""
    pair = make_pair(each_mode, max_batch=2)
    scored: list[bool] = []
    launch = Rounds.launch

    def noted(self: Rounds, plan: RoundPlan, *, scores: bool = False) -> None:
        scored.append(scores)
        launch(self, plan, scores=scores)

    monkeypatch.setattr(Rounds, "launch", noted)
    long = pair.scheduler.submit(request_of(pair, max_tokens=60))
    drive(pair, pair.scheduler.submit(request_of(pair, max_tokens=3, num_logprobs=1)))
    drive(pair, long)
    assert scored.count(True) > 1
    assert not any(scored[-5:])


def test_log_probabilities_do_not_depend_on_the_mode(make_pair, each_mode) -> None:
    """L1 to L3: the target's, one for every token, with lookup drafts too."""
    expected = plain(
        make_pair("ar").target_session.table, request_of(make_pair("ar"), num_logprobs=3)
    )
    for fallback in Fallback:
        pair = make_pair(each_mode, max_batch=2, fallback=fallback)
        asking = request_of(pair, num_logprobs=3)
        pair.scheduler.run([request_of(pair, [4]), asking])
        assert len(asking.logprobs) == len(asking.generated) == 24
        for found, entry in zip(asking.logprobs, expected.logprobs, strict=True):
            assert found.logprob == pytest.approx(entry.logprob, abs=1e-5)
            assert found.top_ids.tolist() == entry.top_ids.tolist()
            assert len(found.top_ids) == 3


def test_a_missing_row_neither_delays_nor_discards_the_hits_of_another() -> None:
    """The reference drafts the whole batch anew on any miss. Here the hit row is judged in every
    round, with drafts, while the row that missed sits out rounds."""
    reports: list = []
    pair = ToyPair(
        SeededDevice(3),
        "ssd",
        max_batch=2,
        max_len=400,
        agreement=2.0,
        num_branches=8,
        fallback=Fallback.JIT,
        on_round=reports.append,
    )
    params = SamplingParams(temperature=1.0, seed=5)
    pair.generate([[1, 2], [3, 4]], [GREEDY, params], max_tokens=150)
    both = [report for report in reports if len(report.rows) == 2]
    alone = [report.rows[0] for report in reports if len(report.rows) == 1]
    assert any(row.hit for row in alone), "no row ever went on while the other sat out"
    for before, after in itertools.pairwise(reports):
        judged = {row.slot for row in before.rows}
        for slot in judged - {row.slot for row in after.rows}:
            # It sat out since the other went on with drafts of its own.
            assert all(row.num_drafted for row in after.rows if row.slot != slot)
    assert both
    assert all(row.kind is not ProposalKind.NONE or row.hit is None for row in alone)
    pair.device.close()


def test_a_single_row_that_misses_waits_for_its_drafts(make_pair) -> None:
    """B = 1, jit: no round without drafts but the first and the last."""
    reports: list = []
    pair = make_pair("ssd", fallback=Fallback.JIT, on_round=reports.append, num_branches=2)
    _, stats = pair.generate([[1, 2]], [GREEDY], max_tokens=60)
    assert stats.num_jit > 3
    assert all(report.rows[0].num_drafted for report in reports[1:-1])
    assert [report.number for report in reports] == list(range(1, stats.num_rounds + 1))
    assert 0 < stats.exposed_s <= stats.draft_s


def test_lookup_drafts_are_accepted_where_the_text_repeats_itself(make_pair) -> None:
    pair = make_pair("ssd", fallback=Fallback.LOOKUP, num_branches=1, agreement=0.2, max_len=300)
    requests, stats = pair.generate([[1, 2]], [GREEDY], max_tokens=250)
    assert requests[0].generated == tokens_of(make_pair("ar", max_len=300), max_tokens=250)
    assert stats.num_lookup > 10
    assert stats.acceptance_length > 2  # a greedy chain of 144 states soon runs in a circle
