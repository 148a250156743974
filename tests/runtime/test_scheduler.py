"""Texts from start to end: who runs when, what is counted, and what an error leaves behind."""

from __future__ import annotations

import itertools
from threading import Thread

import pytest

from engines.errors import BackendError
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice
from runtime.request import FinishReason, Request
from runtime.round import Rounds
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import RoundPlan
from runtime.stats import together
from tests.helpers.toy_pair import ToyPair, plain

GREEDY = SamplingParams()


@pytest.fixture(params=["ar", "sd", "ssd"])
def mode(request):
    return request.param


@pytest.fixture
def make():
    """Pairs on devices of their own, closed at the end."""
    devices = []

    def pair(mode: str, **options) -> ToyPair:
        devices.append(HostDevice(check=True))
        return ToyPair(devices[-1], mode, **options)

    yield pair
    for device in devices:
        device.close()


def tokens_of(pair: ToyPair, prompt=(1, 2), **options) -> list[int]:
    return pair.generate([prompt], [GREEDY], **options)[0][0].generated


def test_more_requests_than_slots_wait_for_a_slot_and_all_get_their_text(make, mode) -> None:
    expected = [tokens_of(make("ar"), [row + 1]) for row in range(5)]
    pair = make(mode, max_batch=2)
    for _ in range(2):
        requests, _ = pair.generate([[row + 1] for row in range(5)], [GREEDY] * 5)
        assert [request.generated for request in requests] == expected
        assert pair.scheduler.num_free == 2


def test_an_empty_batch_is_no_work(make, mode) -> None:
    requests, stats = make(mode).generate([], [])
    assert requests == []
    assert (stats.num_tokens, stats.num_rounds, stats.acceptance_length) == (0, 0, 0.0)


@pytest.mark.parametrize("side", ["target", "draft"])
def test_an_engine_that_failed_is_named_once_and_refused_from_then_on(make, side) -> None:
    """Its stream skips all further work, so a later request could only hang or repeat the
    error; it must say what to do instead."""
    pair = make("ssd")
    session = getattr(pair, f"{side}_session")
    session.table = session.table[:0]  # every call fails
    with pytest.raises(Exception, match="out of bounds"):
        tokens_of(pair)
    for _ in range(2):
        with pytest.raises(BackendError, match=r"open the bundle again.*out of bounds"):
            tokens_of(pair)


def interrupt(*_args: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_in_the_middle_of_a_round_leaves_the_pair_usable(
    make, mode, monkeypatch
) -> None:
    """ctrl-C comes while the host waits for a decision: the round is launched and goes on."""
    pair = make(mode)
    expected = tokens_of(pair)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Rounds, "outcomes", interrupt)
            with pytest.raises(KeyboardInterrupt):
                tokens_of(pair)
        assert tokens_of(pair) == expected


def test_an_interrupt_while_the_streams_are_drained_leaves_the_pair_usable(
    make, mode, monkeypatch
) -> None:
    """An impatient second ctrl-C: the next batch must wait for what still runs."""
    pair = make(mode)
    expected = tokens_of(pair)
    with monkeypatch.context() as patch:

        def twice(_row: int, _tokens: list[int]) -> None:
            patch.setattr(Rounds, "finish", interrupt)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tokens_of(pair, on_tokens=twice)
    assert tokens_of(pair) == expected


def test_text_is_handed_on_while_the_next_round_runs(make, mode, monkeypatch) -> None:
    """Otherwise both engines stand still while the caller prints, and while the host reads."""
    log: list[str] = []
    launch, outcomes = Rounds.launch, Rounds.outcomes
    monkeypatch.setattr(
        Rounds, "launch", lambda *args, **kw: (log.append("launch"), launch(*args, **kw))[1]
    )
    monkeypatch.setattr(Rounds, "outcomes", lambda self: (log.append("wait"), outcomes(self))[1])
    pair = make(mode, num_draft=1, num_branches=2)
    tokens_of(pair, max_tokens=6, on_tokens=lambda _row, _tokens: log.append("text"))
    num_rounds = log.count("wait")
    assert num_rounds > 2
    assert log == ["launch", *["launch", "wait", "text"] * num_rounds]


def test_the_text_that_is_handed_on_is_the_text_that_is_kept(make, mode) -> None:
    handed: dict[int, list[int]] = {0: [], 1: []}
    requests, _ = make(mode, max_batch=2).generate(
        [[1, 2], [3]], [GREEDY] * 2, on_tokens=lambda row, tokens: handed[row].extend(tokens)
    )
    assert [handed[0], handed[1]] == [request.generated for request in requests]


def test_a_caller_is_never_handed_nothing(make, mode) -> None:
    """Texts that end with a stop as a round's first token, and that are cancelled."""
    first = tokens_of(make("ar"), max_tokens=2)
    pair, handed = make(mode, max_batch=2), []
    stopped = Request((1, 2), GREEDY, 24, frozenset(first[1:]), pair.max_len)
    cancelled = pair.scheduler.submit(request_of(pair, [3]), handed.append)
    pair.scheduler.cancel(cancelled)
    drive(pair, cancelled, pair.scheduler.submit(stopped, handed.append))
    assert handed
    assert [] not in handed


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


def test_figures_of_a_batch_are_sums_over_its_rows(make, mode) -> None:
    lengths = [(1, 30), (40, 5), (7, 17)]
    pair = make(mode, max_batch=3)
    batch = [[1 + row] * length for row, (length, _) in enumerate(lengths)]
    requests, stats = pair.generate(batch, [GREEDY] * 3, max_tokens=30, stop_ids=[3])
    assert stats.num_tokens == sum(len(request.generated) for request in requests)
    assert stats.num_rounds == sum(stats.histogram)
    emitted = sum((k + 1) * count for k, count in enumerate(stats.histogram))
    assert stats.num_emitted + stats.num_discarded == emitted
    if mode == "ssd":
        # A row that has ended is a dummy: what it "decides" is neither a round nor a hit.
        known = stats.num_rounds_after_hit + stats.num_rounds_after_miss
        assert known == stats.num_rounds - 3
        assert 0 < stats.num_hits == stats.num_hits_after_hit + stats.num_hits_after_miss <= known
        assert 0 < stats.predicted_hit_rate < 1


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_greedy_rows_of_a_ratio_batch_are_plain_decodings(make, mode) -> None:
    """Their proposals carry no laws, beside rows whose proposals do."""
    prompts = [[1, 2], [3], [4, 5, 6]]
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3), GREEDY]
    plain = make("ar")
    expected = [tokens_of(plain, prompts[row]) for row in (0, 2)]
    requests, stats = make(mode, max_batch=3, verify="ratio").generate(prompts, params)
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


def drive(pair: ToyPair, *tickets) -> None:
    while not all(ticket.done for ticket in tickets):
        pair.scheduler.step()


def request_of(pair: ToyPair, prompt=(1, 2), params=GREEDY, max_tokens=24, **options) -> Request:
    return Request(prompt, params, max_tokens, frozenset(), pair.max_len, **options)


def test_a_text_that_joins_does_not_wait_for_the_others_to_end(make, mode) -> None:
    pair = make(mode, max_batch=2)
    long = pair.scheduler.submit(request_of(pair, max_tokens=60))
    for _ in range(3):
        pair.scheduler.step()
    short = pair.scheduler.submit(request_of(pair, [5], max_tokens=4))
    drive(pair, short)
    assert not long.done
    drive(pair, long)
    assert long.request.generated == tokens_of(make("ar"), max_tokens=60)
    assert short.request.generated == tokens_of(make("ar"), [5], max_tokens=4)


def test_running_texts_wait_for_one_chunk_of_a_prompt_a_round(make, mode, monkeypatch) -> None:
    """A long prompt fed in one go would halt all other texts for its whole length."""
    log: list[str] = []
    launch, feed = Rounds.launch, Rounds.feed
    pair = make(mode, max_batch=2, max_len=800)
    running = pair.scheduler.submit(request_of(pair, max_tokens=700))
    pair.scheduler.step()
    monkeypatch.setattr(
        Rounds, "launch", lambda *args, **kw: (log.append("round"), launch(*args, **kw))[1]
    )
    monkeypatch.setattr(
        Rounds, "feed", lambda *args, **kw: (log.append("chunk"), feed(*args, **kw))
    )
    joining = pair.scheduler.submit(request_of(pair, [3] * 260, max_tokens=2))
    drive(pair, joining)
    assert log[:10] == ["chunk", "round"] * 5
    assert "chunk" not in log[10:]
    pair.scheduler.cancel(running)
    drive(pair, running)


def test_prompts_are_split_alike_alone_and_between_rounds(make, mode) -> None:
    """G3: two splits may round differently and flip a tie."""
    pair = make(mode, max_batch=2, max_len=400, prefix_reuse=False)
    calls: list[tuple[int, ...]] = []
    prepare = pair.target_session.prepare
    prompt_widths = {16, 32, 48, 64}

    def noted(shape):
        if shape.num_tokens in prompt_widths:
            calls.append(shape.num_tokens)
        return prepare(shape)

    pair.target_session.prepare = noted
    alone = pair.scheduler.submit(request_of(pair, [3] * 260, max_tokens=3))
    drive(pair, alone)
    split, calls[:] = list(calls), []
    running = pair.scheduler.submit(request_of(pair, max_tokens=100))
    for _ in range(2):  # the second one reads what the first one launched
        pair.scheduler.step()
    calls.clear()
    joined = pair.scheduler.submit(request_of(pair, [3] * 260, max_tokens=3))
    drive(pair, joined, running)
    assert calls == split == [64, 64, 64, 64, 16]
    assert joined.request.generated == alone.request.generated


def test_a_hole_between_running_texts_is_closed_and_the_calls_get_smaller(make, mode) -> None:
    pair = make(mode, max_batch=4, max_len=200)
    tickets = [
        pair.scheduler.submit(request_of(pair, [row + 1], max_tokens=tokens))
        for row, tokens in enumerate((100, 3, 100, 100))
    ]
    drive(pair, tickets[1])
    pair.scheduler.step()
    pair.scheduler._drain()
    pair.scheduler._rounds.finish()
    assert {ticket.lease.index for ticket in tickets if ticket.slot} == {0, 1, 2}
    assert pair.target._num_rows <= 3 or not pair.target.slots[3]
    drive(pair, *tickets)
    for row, tokens in ((0, 100), (2, 100), (3, 100)):
        assert tickets[row].request.generated == tokens_of(
            make("ar", max_len=200), [row + 1], max_tokens=tokens
        )


def test_a_text_that_waits_takes_the_hole_instead(make, mode) -> None:
    """Copying a text's caches to close a hole that the next text fills would be in vain."""
    pair = make(mode, max_batch=2)
    first, second, third = (
        pair.scheduler.submit(request_of(pair, [row], max_tokens=tokens))
        for row, tokens in ((1, 2), (2, 60), (3, 60))
    )
    drive(pair, first)
    pair.scheduler.step()
    assert (second.lease.index, third.lease.index) == (1, 0)
    drive(pair, second, third)


def test_cancelling_disturbs_nobody_and_frees_the_slot(make, mode) -> None:
    pair = make(mode, max_batch=2)
    handed: list[int] = []
    kept = pair.scheduler.submit(request_of(pair, max_tokens=40))
    gone = pair.scheduler.submit(request_of(pair, [7], max_tokens=40), handed.extend)
    waiting = pair.scheduler.submit(request_of(pair, [8]))
    while not handed:
        pair.scheduler.step()
    pair.scheduler.cancel(gone)
    pair.scheduler.cancel(waiting)
    pair.scheduler.cancel(waiting)
    drive(pair, gone, waiting)
    assert gone.request.finish_reason is waiting.request.finish_reason is FinishReason.CANCELLED
    assert handed == gone.request.generated
    assert waiting.request.generated == []
    used = waiting.stats
    assert (used.num_rounds, used.verify_s, used.draft_s, used.exposed_s) == (0, 0, 0, 0)
    drive(pair, kept)
    assert kept.request.generated == tokens_of(make("ar"), max_tokens=40)
    assert pair.scheduler.num_free == 2
    pair.scheduler.cancel(kept)  # after its end: nothing
    assert not pair.scheduler.step()
    assert kept.request.finish_reason is FinishReason.LENGTH


def test_the_round_of_a_text_that_was_cancelled_is_not_the_next_ones(make, mode) -> None:
    """It is under way when the only text is cancelled. The host once took its reading for that of
    the next text's first round, and lost a token."""
    expected = tokens_of(make("ar"), [8])
    pair = make(mode)
    for steps in (1, 2, 3):
        gone = pair.scheduler.submit(request_of(pair, max_tokens=40))
        kept = pair.scheduler.submit(request_of(pair, [8]))
        for _ in range(steps):
            pair.scheduler.step()
        pair.scheduler.cancel(gone)
        drive(pair, gone, kept)
        assert kept.request.generated == expected
        assert kept.stats.num_tokens == len(expected)


def test_rounds_beyond_a_texts_end_are_not_counted(make, mode) -> None:
    """The host finds a stop string a round late: by then another round is under way."""
    pair = make(mode, num_draft=3, num_branches=4)
    counted = []
    for stop in (None, FixedStop(7, 8)):
        ticket = pair.scheduler.submit(request_of(pair, max_tokens=8, stop=stop))
        drive(pair, ticket)
        counted.append((ticket.stats.num_rounds, ticket.stats.histogram))
    assert counted[0] == counted[1] or mode == "ssd"  # where it learns in between
    assert ticket.stats.num_emitted == 7 == len(ticket.request.generated)


def test_requests_may_come_and_be_cancelled_from_other_threads(make, mode) -> None:
    pair = make(mode, max_batch=2)
    tickets: list = []

    def caller() -> None:
        for row in range(20):
            tickets.append(pair.scheduler.submit(request_of(pair, [row % 5 + 1], max_tokens=9)))
            if row % 3 == 2:
                pair.scheduler.cancel(tickets[-2])

    thread = Thread(target=caller)
    thread.start()
    while thread.is_alive() or pair.scheduler.step():
        pair.scheduler.step()
    thread.join()
    drive(pair, *tickets)
    for row, ticket in enumerate(tickets):
        expected = tokens_of(make("ar"), [row % 5 + 1], max_tokens=9)
        found = ticket.request.generated
        assert found == expected[: len(found)]
        assert found == expected or ticket.request.finish_reason is FinishReason.CANCELLED


def test_a_step_names_each_text_that_it_ended_once(make, mode) -> None:
    """A cancelled one may be handed on twice: its last round's tokens, and its end."""
    pair = make(mode, max_batch=2)
    tickets = [pair.scheduler.submit(request_of(pair, max_tokens=9)) for _ in range(4)]
    ended, place = [], 0
    while len(ended) < 4:
        pair.scheduler.step()
        assert all(ticket.done for ticket in pair.scheduler.just_done)
        ended += pair.scheduler.just_done
        place += 1
        if place == 4:
            pair.scheduler.cancel(tickets[0])
            pair.scheduler.cancel(tickets[3])
    assert set(ended) == set(tickets)
    pair.scheduler.step()
    assert pair.scheduler.just_done == []


def test_an_idle_scheduler_says_so_and_does_nothing(make, mode, monkeypatch) -> None:
    pair = make(mode)
    tokens_of(pair)
    monkeypatch.setattr(Rounds, "launch", interrupt)
    monkeypatch.setattr(Rounds, "finish", interrupt)
    assert not pair.scheduler.step()
    assert not pair.scheduler.step()


def test_an_error_of_one_callers_function_ends_everything_cleanly(make, mode) -> None:
    pair = make(mode, max_batch=2)
    other = pair.scheduler.submit(request_of(pair, [3], max_tokens=60))
    pair.scheduler.submit(request_of(pair), interrupt)
    queued = pair.scheduler.submit(request_of(pair, [4]))
    with pytest.raises(KeyboardInterrupt):
        drive(pair, other)
    for ticket in (other, queued):
        assert ticket.done
        assert ticket.request.finish_reason is FinishReason.CANCELLED
    assert pair.scheduler.num_free == 2
    assert not pair.scheduler.step()
    assert tokens_of(pair) == tokens_of(make("ar"))


def test_an_error_of_one_callers_function_loses_no_text_that_ended_beside_it(make, mode) -> None:
    """Who waits for a text that is over, and was not handed on yet, would wait for ever."""
    pair = make(mode, max_batch=2)
    expected = tokens_of(make("ar"), [5], max_tokens=9)
    ends: list[int] = []

    def fail_at_the_end(tokens: list[int]) -> None:
        ends.extend(tokens)
        if len(ends) == len(expected):
            raise KeyboardInterrupt

    failing = pair.scheduler.submit(request_of(pair, [5], max_tokens=9), fail_at_the_end)
    beside = pair.scheduler.submit(request_of(pair, [5], max_tokens=9))
    with pytest.raises(KeyboardInterrupt):
        drive(pair, failing)
    assert failing.done
    assert beside.done
    assert beside.request.generated == ends == expected


def test_rounds_are_scored_only_while_somebody_asks(make, mode, monkeypatch) -> None:
    """It is a pass over all logits of the round."""
    pair = make(mode, max_batch=2)
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


def test_log_probabilities_do_not_depend_on_the_mode(make, mode) -> None:
    """L1 to L3: the target's, one for every token, with lookup drafts too."""
    expected = plain(make("ar").target_session.table, request_of(make("ar"), num_logprobs=3))
    for fallback in Fallback:
        pair = make(mode, max_batch=2, fallback=fallback)
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


def test_a_single_row_that_misses_waits_for_its_drafts(make) -> None:
    """B = 1, jit: no round without drafts but the first and the last."""
    reports: list = []
    pair = make("ssd", fallback=Fallback.JIT, on_round=reports.append, num_branches=2)
    _, stats = pair.generate([[1, 2]], [GREEDY], max_tokens=60)
    assert stats.num_jit > 3
    assert all(report.rows[0].num_drafted for report in reports[1:-1])
    assert [report.number for report in reports] == list(range(1, stats.num_rounds + 1))
    assert 0 < stats.exposed_s <= stats.draft_s


def test_lookup_drafts_are_accepted_where_the_text_repeats_itself(make) -> None:
    pair = make("ssd", fallback=Fallback.LOOKUP, num_branches=1, agreement=0.2, max_len=300)
    requests, stats = pair.generate([[1, 2]], [GREEDY], max_tokens=250)
    assert requests[0].generated == tokens_of(make("ar", max_len=300), max_tokens=250)
    assert stats.num_lookup > 10
    assert stats.acceptance_length > 2  # a greedy chain of 144 states soon runs in a circle
