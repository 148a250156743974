"""What an interrupt, a caller's error or an engine's leaves behind."""

from __future__ import annotations

import pytest

from engines.errors import BackendError
from runtime.request import FinishReason
from runtime.round import Rounds
from tests.helpers.toy_texts import drive, interrupt, request_of, tokens_of


@pytest.mark.parametrize("side", ["target", "draft"])
def test_an_engine_that_failed_is_named_once_and_refused_from_then_on(make_pair, side) -> None:
    """Its stream skips all further work, so a later request could only hang or repeat the
    error; it must say what to do instead."""
    pair = make_pair("ssd")
    session = getattr(pair, f"{side}_session")
    session.table = session.table[:0]  # every call fails
    with pytest.raises(Exception, match="out of bounds"):
        tokens_of(pair)
    for _ in range(2):
        with pytest.raises(BackendError, match=r"open the bundle again.*out of bounds"):
            tokens_of(pair)


def test_an_interrupt_in_the_middle_of_a_round_leaves_the_pair_usable(
    make_pair, each_mode, monkeypatch
) -> None:
    """ctrl-C comes while the host waits for a decision: the round is launched and goes on."""
    pair = make_pair(each_mode)
    expected = tokens_of(pair)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Rounds, "outcomes", interrupt)
            with pytest.raises(KeyboardInterrupt):
                tokens_of(pair)
        assert tokens_of(pair) == expected


def test_an_interrupt_while_the_streams_are_drained_leaves_the_pair_usable(
    make_pair, each_mode, monkeypatch
) -> None:
    """An impatient second ctrl-C: the next batch must wait for what still runs."""
    pair = make_pair(each_mode)
    expected = tokens_of(pair)
    with monkeypatch.context() as patch:

        def twice(_row: int, _tokens: list[int]) -> None:
            patch.setattr(Rounds, "finish", interrupt)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tokens_of(pair, on_tokens=twice)
    assert tokens_of(pair) == expected


def test_an_error_of_one_callers_function_ends_everything_cleanly(make_pair, each_mode) -> None:
    pair = make_pair(each_mode, max_batch=2)
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
    assert tokens_of(pair) == tokens_of(make_pair("ar"))


def test_an_error_of_one_callers_function_loses_no_text_that_ended_beside_it(
    make_pair, each_mode
) -> None:
    """Who waits for a text that is over, and was not handed on yet, would wait for ever."""
    pair = make_pair(each_mode, max_batch=2)
    expected = tokens_of(make_pair("ar"), [5], max_tokens=9)
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
