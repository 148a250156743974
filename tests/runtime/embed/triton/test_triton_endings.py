"""Requests that end before their texts do: cancelled, refused, unloaded, failed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BackendError
from runtime.completion import Completion
from runtime.embed.triton import replies
from runtime.llm import LLM
from runtime.scheduler import Scheduler
from tests.helpers.fake_triton import FakeModel
from tests.runtime.embed.triton.served import LONG, PROMPT, repository, said_by


def test_a_cancelled_stream_ends_with_an_error_and_frees_its_place(model: FakeModel) -> None:
    """More of them than may be in the house, one after the other."""
    for _ in range(6):
        call = model.ask(stream=True, **LONG)
        call.wait_for_pieces(2)
        call.cancel()
        call.wait()
        assert call.error is None or call.error.code() == "CANCELLED"
    assert model.ask(input_ids=PROMPT, max_tokens=3).last


@pytest.mark.parametrize("stream", [False, True])
def test_who_leaves_gets_no_text(model: FakeModel, paused: threading.Event, stream: bool) -> None:
    call, other = model.ask(stream=stream, **LONG), model.ask(**LONG)
    call.cancel()
    assert call.refusal == ("CANCELLED", "the client cancelled the request")
    assert paused.is_set()
    assert len(call.responses) < 100
    assert len(other.token_ids) == 120


def test_a_request_that_is_cancelled_while_it_waits_never_runs(
    model: FakeModel, paused: threading.Event
) -> None:
    running = [model.ask(**LONG) for _ in range(3)]
    waiting = model.ask(stream=True, **LONG)
    waiting.cancel()
    assert waiting.refusal[0] == "CANCELLED"
    assert waiting.responses == []
    assert paused.is_set()
    for call in running:
        assert len(call.token_ids) == 120


def test_more_than_may_wait_are_refused_at_once(model: FakeModel, paused: threading.Event) -> None:
    calls = model.ask_all([(LONG, {}) for _ in range(7)])
    for call in calls[5:]:
        code, message = call.refusal
        assert code == "UNAVAILABLE"
        assert "5 requests are here already" in message
    paused.set()
    for call in calls[:5]:
        assert len(call.token_ids) == 120
    assert model.ask(input_ids=PROMPT, max_tokens=3).last


def test_a_client_that_nobody_can_send_to_is_cancelled(tmp_path: Path) -> None:
    """A real sender raises where the server is in trouble; its text must not run to the end, and
    the others' go on."""
    model = FakeModel(repository(tmp_path, mode="ar"))
    try:
        call, other = model.ask(stream=True, **LONG), model.ask(stream=True, **LONG)
        call.break_down()
        call.wait()
        assert len(other.token_ids) == 120
        assert len(call.responses) < 100
        assert any("could not be sent" in line for line in model.logger.lines)
    finally:
        model.unload()


@pytest.mark.usefixtures("paused")
def test_a_request_that_was_given_up_before_it_was_ready_does_not_run(
    tmp_path: Path, begin: threading.Event
) -> None:
    """It had nothing to cancel yet, so it ran to its end for nobody, in another one's place."""
    model = FakeModel(repository(tmp_path, mode="ar"))
    try:
        call = model.ask(guided_decoding_guide_type="json", **LONG | {"ignore_eos": False})
        call.break_down()
        call.wait()
        begin.set()
        assert len(model.ask(**LONG).token_ids) == 120, (
            "the engines stood still: none was cancelled"
        )
    finally:
        model.unload()


def test_an_answer_that_cannot_be_made_is_an_error_and_frees_its_place(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault of ours: without an answer the client would wait for ever."""

    def broken(_done: Completion) -> dict[str, Any]:
        raise ZeroDivisionError("of ours")

    logged = len(model.logger.lines)
    monkeypatch.setattr(replies, "_of_end", broken)
    for _ in range(6):
        code, message = model.ask(input_ids=PROMPT, max_tokens=3).refusal
        assert (code, "of ours" in message) == ("INTERNAL", True)
    monkeypatch.undo()
    assert model.ask(input_ids=PROMPT, max_tokens=3).last
    assert len(model.logger.lines) > logged
    del model.logger.lines[logged:]


def test_a_slow_grammar_holds_up_neither_the_server_nor_the_others(
    model: FakeModel, begin: threading.Event
) -> None:
    formed = model.ask(
        input_ids=PROMPT,
        guided_decoding_guide_type="choice",
        guided_decoding_guide='["yes", "no"]',
    )
    assert model.ask(input_ids=PROMPT, max_tokens=9).last
    assert not formed.is_final
    begin.set()
    assert formed.text in ("yes", "no")


@pytest.mark.usefixtures("paused")
def test_a_request_that_is_cancelled_before_it_is_ready_never_runs(
    model: FakeModel, begin: threading.Event
) -> None:
    call = model.ask(guided_decoding_guide_type="json", **LONG | {"ignore_eos": False})
    call.cancel()
    call.wait_until_told()
    begin.set()
    assert call.refusal[0] == "CANCELLED"


def test_engines_that_fail_end_what_runs_and_the_next_request_finds_out(
    model: FakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = model.ask(stream=True, **LONG)
    call.wait_for_pieces(1)
    step, num_failures = Scheduler.step, iter(range(1))

    def failing(scheduler: Scheduler) -> None:
        if next(num_failures, None) is not None:
            raise BackendError("the engine is on fire")
        step(scheduler)

    monkeypatch.setattr(Scheduler, "step", failing)
    code, message = call.refusal
    assert (code, message) == ("INTERNAL", "the engine is on fire")


def test_unloaded_while_texts_run_it_lets_them_end(tmp_path: Path, alone: LLM) -> None:
    model = FakeModel(repository(tmp_path, mode="ssd"))
    calls = [model.ask(stream=i % 2 == 0, **LONG) for i in range(4)]
    model.unload()
    expected = said_by(alone, {}, max_tokens=120, ignore_eos=True)
    assert all(call.is_final for call in calls)
    assert [call.token_ids for call in calls] == [expected.token_ids] * 4


def test_unloaded_without_patience_it_answers_with_an_error(
    tmp_path: Path, paused: threading.Event
) -> None:
    model = FakeModel(repository(tmp_path, mode="ssd", drain_timeout_s=0))
    calls = [model.ask(**LONG) for _ in range(5)]
    model.unload()
    assert all(call.is_final for call in calls)
    assert paused.is_set()
    assert {call.refusal for call in calls} == {("UNAVAILABLE", "the model is being unloaded")}


def test_what_was_opened_is_closed(tmp_path: Path) -> None:
    before = {each.name for each in threading.enumerate()}
    model = FakeModel(repository(tmp_path, mode="ar"))
    model.ask(input_ids=PROMPT, max_tokens=3).wait()
    model.unload()
    left = {each.name for each in threading.enumerate()} - before
    assert not {name for name in left if "triton" in name or "engine loop" in name}
