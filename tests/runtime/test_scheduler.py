"""Texts from start to end: who runs when, and what callers are handed."""

from __future__ import annotations

from threading import Thread

from runtime.request import FinishReason, Request
from runtime.round import Rounds
from tests.helpers.toy_texts import GREEDY, drive, interrupt, request_of, tokens_of


def test_more_requests_than_slots_wait_for_a_slot_and_all_get_their_text(
    make_pair, each_mode
) -> None:
    expected = [tokens_of(make_pair("ar"), [row + 1]) for row in range(5)]
    pair = make_pair(each_mode, max_batch=2)
    for _ in range(2):
        requests, _ = pair.generate([[row + 1] for row in range(5)], [GREEDY] * 5)
        assert [request.generated for request in requests] == expected
        assert pair.scheduler.num_free == 2


def test_text_is_handed_on_while_the_next_round_runs(make_pair, each_mode, monkeypatch) -> None:
    """Otherwise both engines stand still while the caller prints, and while the host reads."""
    log: list[str] = []
    launch, outcomes = Rounds.launch, Rounds.outcomes
    monkeypatch.setattr(
        Rounds, "launch", lambda *args, **kw: (log.append("launch"), launch(*args, **kw))[1]
    )
    monkeypatch.setattr(Rounds, "outcomes", lambda self: (log.append("wait"), outcomes(self))[1])
    pair = make_pair(each_mode, num_draft=1, num_branches=2)
    tokens_of(pair, max_tokens=6, on_tokens=lambda _row, _tokens: log.append("text"))
    num_rounds = log.count("wait")
    assert num_rounds > 2
    assert log == ["launch", *["launch", "wait", "text"] * num_rounds]


def test_the_text_that_is_handed_on_is_the_text_that_is_kept(make_pair, each_mode) -> None:
    handed: dict[int, list[int]] = {0: [], 1: []}
    requests, _ = make_pair(each_mode, max_batch=2).generate(
        [[1, 2], [3]], [GREEDY] * 2, on_tokens=lambda row, tokens: handed[row].extend(tokens)
    )
    assert [handed[0], handed[1]] == [request.generated for request in requests]


def test_a_caller_is_never_handed_nothing(make_pair, each_mode) -> None:
    """Texts that end with a stop as a round's first token, and that are cancelled."""
    first = tokens_of(make_pair("ar"), max_tokens=2)
    pair, handed = make_pair(each_mode, max_batch=2), []
    stopped = Request((1, 2), GREEDY, 24, frozenset(first[1:]), pair.max_len)
    cancelled = pair.scheduler.submit(request_of(pair, [3]), handed.append)
    pair.scheduler.cancel(cancelled)
    drive(pair, cancelled, pair.scheduler.submit(stopped, handed.append))
    assert handed
    assert [] not in handed


def test_a_text_that_joins_does_not_wait_for_the_others_to_end(make_pair, each_mode) -> None:
    pair = make_pair(each_mode, max_batch=2)
    long = pair.scheduler.submit(request_of(pair, max_tokens=60))
    for _ in range(3):
        pair.scheduler.step()
    short = pair.scheduler.submit(request_of(pair, [5], max_tokens=4))
    drive(pair, short)
    assert not long.done
    drive(pair, long)
    assert long.request.generated == tokens_of(make_pair("ar"), max_tokens=60)
    assert short.request.generated == tokens_of(make_pair("ar"), [5], max_tokens=4)


def test_running_texts_wait_for_one_chunk_of_a_prompt_a_round(
    make_pair, each_mode, monkeypatch
) -> None:
    """A long prompt fed in one go would halt all other texts for its whole length."""
    log: list[str] = []
    launch, feed = Rounds.launch, Rounds.feed
    pair = make_pair(each_mode, max_batch=2, max_len=800)
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


def test_prompts_are_split_alike_alone_and_between_rounds(make_pair, each_mode) -> None:
    """G3: two splits may round differently and flip a tie."""
    pair = make_pair(each_mode, max_batch=2, max_len=400, prefix_reuse=False)
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


def test_a_hole_between_running_texts_is_closed_and_the_calls_get_smaller(
    make_pair, each_mode
) -> None:
    pair = make_pair(each_mode, max_batch=4, max_len=200)
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
            make_pair("ar", max_len=200), [row + 1], max_tokens=tokens
        )


def test_a_text_that_waits_takes_the_hole_instead(make_pair, each_mode) -> None:
    """Copying a text's caches to close a hole that the next text fills would be in vain."""
    pair = make_pair(each_mode, max_batch=2)
    first, second, third = (
        pair.scheduler.submit(request_of(pair, [row], max_tokens=tokens))
        for row, tokens in ((1, 2), (2, 60), (3, 60))
    )
    drive(pair, first)
    pair.scheduler.step()
    assert (second.lease.index, third.lease.index) == (1, 0)
    drive(pair, second, third)


def test_cancelling_disturbs_nobody_and_frees_the_slot(make_pair, each_mode) -> None:
    pair = make_pair(each_mode, max_batch=2)
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
    assert kept.request.generated == tokens_of(make_pair("ar"), max_tokens=40)
    assert pair.scheduler.num_free == 2
    pair.scheduler.cancel(kept)  # after its end: nothing
    assert not pair.scheduler.step()
    assert kept.request.finish_reason is FinishReason.LENGTH


def test_the_round_of_a_text_that_was_cancelled_is_not_the_next_ones(make_pair, each_mode) -> None:
    """It is under way when the only text is cancelled. The host once took its reading for that of
    the next text's first round, and lost a token."""
    expected = tokens_of(make_pair("ar"), [8])
    pair = make_pair(each_mode)
    for steps in (1, 2, 3):
        gone = pair.scheduler.submit(request_of(pair, max_tokens=40))
        kept = pair.scheduler.submit(request_of(pair, [8]))
        for _ in range(steps):
            pair.scheduler.step()
        pair.scheduler.cancel(gone)
        drive(pair, gone, kept)
        assert kept.request.generated == expected
        assert kept.stats.num_tokens == len(expected)


def test_requests_may_come_and_be_cancelled_from_other_threads(make_pair, each_mode) -> None:
    pair = make_pair(each_mode, max_batch=2)
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
        expected = tokens_of(make_pair("ar"), [row % 5 + 1], max_tokens=9)
        found = ticket.request.generated
        assert found == expected[: len(found)]
        assert found == expected or ticket.request.finish_reason is FinishReason.CANCELLED


def test_a_step_names_each_text_that_it_ended_once(make_pair, each_mode) -> None:
    """A cancelled one may be handed on twice: its last round's tokens, and its end."""
    pair = make_pair(each_mode, max_batch=2)
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


def test_an_idle_scheduler_says_so_and_does_nothing(make_pair, each_mode, monkeypatch) -> None:
    pair = make_pair(each_mode)
    tokens_of(pair)
    monkeypatch.setattr(Rounds, "launch", interrupt)
    monkeypatch.setattr(Rounds, "finish", interrupt)
    assert not pair.scheduler.step()
    assert not pair.scheduler.step()
