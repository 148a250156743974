"""Calls that cannot be served, or not to their end: each is told plainly and harms no other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engines.errors import UsageError
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from runtime.text import stop as stop_module
from runtime.ticket import Ticket
from tests.helpers.tiny_bundle import tiny_bundle

PROMPT = [5, 6, 7]
ALL = range(320)
CLOSED = r"^the LLM was closed while this request ran$"


def opened(mode: str) -> LLM:
    return LLM.open(tiny_bundle(tied=False).path, mode=mode)


@pytest.fixture(scope="module", params=["ar", "ssd"])
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    with opened(request.param) as one:
        yield one


@pytest.mark.parametrize(
    ("params", "options", "reason"),
    [
        (SamplingParams(), {"min_tokens": 1, "stop_token_ids": ALL}, "every token ends the text"),
        (SamplingParams(banned_ids=tuple(ALL), banned_before=9), {}, "banned_ids"),
        (SamplingParams(banned_ids=(10**30,), banned_before=9), {}, "banned_ids"),
    ],
    ids=["stops", "bans", "no id"],
)
def test_a_request_that_leaves_no_token_is_refused(llm, params, options, reason) -> None:
    """It failed the engine's stream, which then refused every later request."""
    for call in (llm.generate, llm.stream):
        with pytest.raises(UsageError, match=reason):
            call(PROMPT, params, max_tokens=3, **options)
    with pytest.raises(UsageError, match=reason):
        llm.generate_batch([PROMPT], params, max_tokens=3, **options)
    assert llm.generate(PROMPT, max_tokens=3).token_ids


def test_all_but_one_token_may_be_stops(llm: LLM) -> None:
    """Also those that the draft has: its vocabulary is the smaller one."""
    for left in (3, 310):
        stops = [token for token in ALL if token != left]
        answer = llm.generate(PROMPT, max_tokens=3, min_tokens=3, stop_token_ids=stops)
        assert answer.token_ids == (left,) * 3
    assert llm.generate(PROMPT, max_tokens=3, stop_token_ids=ALL).token_ids == ()


def in_a_fork(work: Callable[[], None]) -> int:
    """The exit code of ``work`` in a forked process: 0 if it returns, -14 if it hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_to_open_its_own(llm: LLM) -> None:
    """It waited for ever, for threads that only the process before the fork has."""
    running = llm.stream(PROMPT, max_tokens=60)
    next(running)

    def use_it() -> None:
        for call in (
            lambda: llm.generate(PROMPT, max_tokens=3),
            lambda: llm.generate_batch([PROMPT], max_tokens=3),
            lambda: next(llm.stream(PROMPT, max_tokens=3)),
            lambda: next(running),
        ):
            with pytest.raises(UsageError, match="opened in another process; open it again here"):
                call()

    def leave_it() -> None:
        running.close()
        llm.close()
        llm.close()

    assert in_a_fork(use_it) == 0
    assert in_a_fork(leave_it) == 0
    running.close()
    assert llm.generate(PROMPT, max_tokens=3).token_ids


def test_options_are_read_once_a_call(llm: LLM) -> None:
    """Given as iterators they were used up by the first prompt of a batch."""
    token = llm.generate(PROMPT, max_tokens=3).token_ids[2]
    options: dict[str, Any] = {"stop_token_ids": iter([token])}
    answers = llm.generate_batch([PROMPT] * 3, max_tokens=30, **options)
    assert [each.stop_reason for each in answers] == [token] * 3
    letter = llm.generate(PROMPT, max_tokens=30).text.strip()[0]
    options = {"stop": (each for each in [letter])}
    answers = llm.generate_batch([PROMPT] * 3, max_tokens=30, **options)
    assert [each.stop_reason for each in answers] == [letter] * 3


def test_stop_strings_are_compared_once_a_call(llm: LLM, monkeypatch) -> None:
    """All pairs of them, for each prompt: a thousand stops took seconds."""
    seen: list[str] = []
    monkeypatch.setattr(stop_module, "_can_be_first", lambda stop, _stops: not seen.append(stop))
    llm.generate_batch([PROMPT] * 5, max_tokens=1, stop=["once", "twice"])
    assert seen == ["once", "twice"]


def test_a_round_looks_at_no_text_that_does_not_run(llm: LLM, monkeypatch) -> None:
    """Each of them looked at all that waited: a third of the time, with thousands of prompts."""
    looks: list[Ticket] = []

    def look(ticket: Ticket) -> bool:
        looks.append(ticket)
        return bool(vars(ticket).get("done"))

    done = property(look, lambda ticket, value: vars(ticket).update(done=value))
    monkeypatch.setattr(Ticket, "done", done, raising=False)
    llm.generate_batch([PROMPT] * 30, max_tokens=5)
    assert 30 <= len(looks) <= 60


def test_a_stream_that_is_closed_unread_is_complete(llm: LLM) -> None:
    unread = llm.stream(PROMPT, stop=["x"])
    unread.close()
    unread.close()
    completion = unread.completion
    assert (completion.finish_reason, completion.token_ids, completion.text) == (
        "cancelled",
        (),
        "",
    )
    assert completion.stats.num_tokens == completion.stats.num_rounds == 0
    assert list(unread) == []


def test_a_stream_that_is_refused_has_no_completion(llm: LLM) -> None:
    with llm.stream(PROMPT, max_tokens=30) as first:
        next(first)
        second = llm.stream(PROMPT)
        with pytest.raises(UsageError, match="in the middle of another request"):
            next(second)
        with pytest.raises(UsageError, match="refused"):
            _ = second.completion
    assert first.completion.finish_reason == "cancelled"


def test_a_stream_of_a_closed_model_has_no_completion() -> None:
    llm = opened("ar")
    stream = llm.stream(PROMPT)
    llm.close()
    with pytest.raises(UsageError, match="closed"):
        next(stream)
    with pytest.raises(UsageError, match="refused"):
        _ = stream.completion


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_closing_the_model_is_what_a_running_call_tells(mode: str) -> None:
    """It told of streams and events of which its caller knows nothing."""
    llm = opened(mode)
    stream = llm.stream(PROMPT, max_tokens=100)
    next(stream)
    llm.close()
    with pytest.raises(UsageError, match=CLOSED):
        list(stream)


@pytest.mark.parametrize("mode", ["ar", "ssd"])
def test_another_thread_closes_the_model(mode: str) -> None:
    """While a batch runs of which most prompts wait for a slot."""
    llm = opened(mode)
    threads: list[threading.Thread] = []

    def on_text(_index: int, _piece: str) -> None:
        if not threads:
            threads.append(threading.Thread(target=llm.close))
            threads[0].start()

    with pytest.raises(UsageError, match=CLOSED):
        llm.generate_batch([PROMPT] * 200, max_tokens=100, on_text=on_text)
    threads[0].join()


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.generate_batch(None),
        lambda llm: llm.generate_batch(each for each in [PROMPT]),
        lambda llm: llm.generate_batch("ab"),
        lambda llm: llm.generate_batch(np.array(5)),
        lambda llm: llm.generate_batch([PROMPT], None),
        lambda llm: llm.generate_batch([PROMPT], 5),
        lambda llm: llm.generate_batch([PROMPT], [None]),
        lambda llm: llm.generate(np.array(5)),
        lambda llm: llm.generate(PROMPT, stop=np.array(5)),
        lambda llm: llm.generate(PROMPT, stop_token_ids=np.array(5)),
        lambda llm: llm.generate(PROMPT, temperature=1),
        lambda llm: llm.stream(PROMPT, vocab_size=3),
        lambda llm: llm.cancel("a"),
        lambda llm: llm.cancel(1.5),
    ],
)
def test_a_call_in_the_wrong_words_is_a_usage_error(llm: LLM, call) -> None:
    with pytest.raises(UsageError, match="expected"):
        call(llm)


def test_a_batch_may_be_an_array(llm: LLM) -> None:
    [answer] = llm.generate_batch(np.array([PROMPT]), max_tokens=3)  # type: ignore[arg-type]
    assert answer.token_ids == llm.generate(PROMPT, max_tokens=3).token_ids


def test_a_listener_may_not_raise_stop_iteration(llm: LLM) -> None:
    """Python made a RuntimeError of it that named a generator."""

    def listen(*_args: object) -> None:
        raise StopIteration

    with pytest.raises(UsageError, match=r"on_text raised StopIteration; .*LLM\.cancel"):
        llm.generate(PROMPT, max_tokens=9, on_text=listen)
    with pytest.raises(UsageError, match="on_text raised StopIteration"):
        llm.generate_batch([PROMPT], max_tokens=9, on_text=listen)
    with pytest.raises(StopIteration):
        llm.generate_batch([PROMPT], max_tokens=9, on_done=listen)


@pytest.mark.parametrize(
    "options",
    [
        {"saguaro": 10**400, "verify": "ratio"},
        {"saguaro": np.array([1, 2]), "verify": "ratio"},
        {"saguaro": np.array([1, 2])},
        {"mode": np.array(["ar", "sd"])},
        {"fallback": np.array(["jit", "zero"])},
        {"verify": None},
    ],
)
def test_a_setting_of_another_kind_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(options))} is .*expected"):
        LLM.open(tiny_bundle(tied=False).path, **{"mode": "ar", **options})


def test_equal_completions_with_logprobs_are_equal(llm: LLM) -> None:
    one, other = (llm.generate(PROMPT, max_tokens=3, logprobs=2).logprobs for _ in range(2))
    fewer = llm.generate(PROMPT, max_tokens=3, logprobs=1).logprobs
    assert one == other != fewer
    assert hash(one) == hash(other)
