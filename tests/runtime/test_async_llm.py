"""Many callers of one LLM: each gets its own text, and none is harmed by another."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from engines.errors import BackendError, CapacityError, UsageError
from runtime.async_llm import AsyncLLM
from runtime.completion import Completion, Delta
from runtime.engine_loop import EngineLoop
from runtime.grammar import Grammar
from runtime.llm import GREEDY, LLM
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle

LONG: GenerateOptions = {"max_tokens": 120, "ignore_eos": True}
LAWS = [SamplingParams(), SamplingParams(1.0, seed=3), SamplingParams(repetition_penalty=1.2)]


def prompt_of(number: int) -> list[int]:
    return np.random.default_rng(number).integers(3, 320, 3 + 7 * (number % 4)).tolist()


def law_of(number: int) -> SamplingParams:
    return LAWS[number % len(LAWS)]


def told(answer: Completion) -> tuple[object, ...]:
    return answer.token_ids, answer.text, answer.finish_reason


@pytest.fixture(scope="module")
def alone() -> list[tuple[object, ...]]:
    """What each of twelve requests is answered when it has the model for itself."""
    with LLM.open(tiny_bundle(max_batch=1).path, mode="ar") as llm:
        return [
            told(llm.generate(prompt_of(i), law_of(i), max_tokens=10 + 3 * i)) for i in range(12)
        ]


@pytest.fixture(params=["ar", "ssd"])
def llm(request: pytest.FixtureRequest) -> Iterator[AsyncLLM]:
    opened = AsyncLLM.open(tiny_bundle(max_batch=3).path, mode=request.param)
    yield opened
    opened.close()


def test_tasks_at_once_get_what_each_gets_alone(llm: AsyncLLM, alone) -> None:
    async def ask() -> list[Completion]:
        calls = (llm.generate(prompt_of(i), law_of(i), max_tokens=10 + 3 * i) for i in range(12))
        return list(await asyncio.gather(*calls))

    assert [told(each) for each in asyncio.run(ask())] == alone
    assert (llm.num_running, llm.num_waiting) == (0, 0)


def test_threads_at_once_get_what_each_gets_alone(llm: AsyncLLM, alone) -> None:
    """Each with an event loop of its own."""
    with ThreadPoolExecutor(6) as pool:
        calls = [
            pool.submit(
                lambda i=i: asyncio.run(
                    llm.generate(prompt_of(i), law_of(i), max_tokens=10 + 3 * i)
                )
            )
            for i in range(12)
        ]
        assert [told(each.result()) for each in calls] == alone


def test_deltas_joined_are_the_completion(llm: AsyncLLM) -> None:
    """Also where a stop string takes back what was certain of the tokens, not of the text."""

    async def read(**options) -> tuple[list[Delta], Completion]:
        deltas = llm.deltas(prompt_of(2), LAWS[1], **options)
        return [each async for each in deltas], deltas.completion

    async def ask() -> None:
        text = (await read(max_tokens=40))[1].text
        for options in (
            {"max_tokens": 40},
            {"max_tokens": 40, "logprobs": 2},
            {"max_tokens": 40, "stop": [text[9:12]], "logprobs": 0},
            {"max_tokens": 60, "grammar": Grammar.regex(r"([a-z]+ )+x"), "logprobs": 1},
        ):
            pieces, done = await read(**options)
            assert "".join(each.text for each in pieces) == done.text
            assert sum((each.token_ids for each in pieces), ()) == done.token_ids
            assert len(pieces) > 1
            if done.logprobs is not None:
                assert sum((each.logprobs or () for each in pieces), ()) == done.logprobs
            else:
                assert all(each.logprobs is None for each in pieces)

    asyncio.run(ask())


def test_text_alone_is_streamed_without_empty_pieces(llm: AsyncLLM) -> None:
    async def ask() -> None:
        async with llm.stream(prompt_of(1), LAWS[1], max_tokens=40) as stream:
            with pytest.raises(UsageError, match="not complete"):
                _ = stream.completion
            pieces = [each async for each in stream]
        assert all(pieces)
        assert "".join(pieces) == stream.completion.text

    asyncio.run(ask())


def test_whoever_wants_no_more_frees_the_place(llm: AsyncLLM) -> None:
    """Closed, left, forgotten, cancelled from beside, or its task cancelled: there are three
    places, and each way is taken more often than that."""

    async def one(way: str) -> None:
        stream = llm.deltas(prompt_of(1), **LONG)
        task = asyncio.ensure_future(anext(stream))
        await task
        if way == "closed":
            await stream.aclose()
            assert stream.completion.finish_reason == "cancelled"
        elif way == "left":
            async with stream:
                pass
        elif way == "forgotten":
            del stream, task
            gc.collect()
        elif way == "beside":
            threading.Thread(target=stream.cancel).start()
            done = await stream.finished()
            assert done.finish_reason == "cancelled"
            assert done.token_ids
        else:
            reading = asyncio.ensure_future(stream.finished())
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

    async def ask() -> None:
        for way in ("closed", "left", "forgotten", "beside", "task"):
            for _ in range(4):
                await one(way)
        answer = await asyncio.wait_for(llm.generate(prompt_of(1), max_tokens=3), 30)
        assert answer.finish_reason == "length"
        while llm.num_running:  # those of the last ways end between two rounds
            await asyncio.sleep(0.001)

    asyncio.run(ask())


def test_a_request_that_waits_can_be_cancelled(llm: AsyncLLM) -> None:
    async def ask() -> None:
        running = [llm.deltas(prompt_of(1), **LONG) for _ in range(3)]
        waiting = llm.deltas(prompt_of(1), **LONG)
        for each in running:
            await anext(each)
        assert (llm.num_running, llm.num_waiting) == (3, 1)
        await waiting.aclose()
        assert waiting.completion.token_ids == ()
        assert waiting.completion.finish_reason == "cancelled"
        assert (llm.num_running, llm.num_waiting) == (3, 0)

    asyncio.run(ask())


def test_what_cannot_be_served_is_refused_before_anything_is_awaited(llm: AsyncLLM) -> None:
    for prompt, options, error in (
        ([], {}, UsageError),
        ([1] * 160, {}, CapacityError),
        ([1], {"best_of": 2}, UsageError),
        ([1], {"grammar": Grammar.regex("(")}, UsageError),
    ):
        with pytest.raises(error):
            llm.deltas(prompt, **options)  # type: ignore[arg-type]
    assert llm.num_running == 0


def test_the_llms_own_calls_are_refused_meanwhile_and_its_helpers_are_not(llm: AsyncLLM) -> None:
    with pytest.raises(UsageError, match="AsyncLLM"):
        llm.llm.generate(prompt_of(1))
    assert llm.llm.encode("hello")
    asyncio.run(llm.generate("hello", max_tokens=2))


def test_an_engine_that_fails_ends_those_that_run_and_says_so_to_the_next(monkeypatch) -> None:
    llm = AsyncLLM.open(tiny_bundle(max_batch=3).path, mode="ar")
    scheduler = llm.llm.engine._pair.scheduler
    plain_step = scheduler._course.take

    def fail() -> object:
        raise BackendError("the engine broke")

    async def ask() -> None:
        streams = [llm.deltas(prompt_of(i), **LONG) for i in range(4)]
        await anext(streams[0])
        monkeypatch.setattr(scheduler._course, "take", fail)
        for stream in streams:
            with pytest.raises(BackendError, match="the engine broke"):
                await stream.finished()
            with pytest.raises(BackendError, match="the engine broke"):
                _ = stream.completion
        assert isinstance(llm.error, BackendError)
        monkeypatch.setattr(scheduler._course, "take", plain_step)
        assert (await llm.generate(prompt_of(1), max_tokens=4)).finish_reason == "length"
        assert llm.error is None

    asyncio.run(ask())
    llm.close()


def test_a_listener_that_fails_harms_its_own_request_alone() -> None:
    """An exception inside of a step ends all that runs."""
    with LLM.open(tiny_bundle(max_batch=2).path, mode="ssd") as llm:
        expected = told(llm.generate(prompt_of(1), max_tokens=30))
        ended: dict[str, Completion | Exception] = {}
        both = threading.Barrier(3)

        def end(name: str, result: Completion | Exception) -> None:
            ended[name] = result
            threading.Thread(target=both.wait).start()

        def fail(_delta: Delta) -> None:
            raise StopIteration

        with closing(EngineLoop(llm)) as loop:
            for name, listen in (("bad", fail), ("good", lambda _delta: None)):
                loop.submit(
                    prompt_of(1),
                    GREEDY,
                    {"max_tokens": 30},
                    on_delta=listen,
                    on_end=lambda result, name=name: end(name, result),
                )
            both.wait(30)
        assert isinstance(ended["bad"], UsageError)
        good = ended["good"]
        assert isinstance(good, Completion)
        assert told(good) == expected
        assert told(llm.generate(prompt_of(1), max_tokens=30)) == expected, "the LLM is free again"


@pytest.mark.parametrize("drain_s", [None, 60.0, math.inf])
def test_closing_cancels_or_drains_and_refuses_what_comes_later(drain_s) -> None:
    llm = AsyncLLM.open(tiny_bundle(max_batch=2).path, mode="ssd")

    async def ask() -> list[Completion]:
        streams = [llm.deltas(prompt_of(i), max_tokens=20, ignore_eos=True) for i in range(5)]
        await anext(streams[0])
        await llm.aclose(drain_s=drain_s)
        with pytest.raises(UsageError, match="closed"):
            llm.deltas(prompt_of(1))
        return [await each.finished() for each in streams]

    reasons = {each.finish_reason for each in asyncio.run(ask())}
    assert reasons <= ({"length"} if drain_s else {"length", "cancelled"})
    assert drain_s or "cancelled" in reasons
    llm.close()


def test_an_llm_that_is_closed_under_its_loop_ends_what_runs() -> None:
    llm = AsyncLLM.open(tiny_bundle(max_batch=2).path, mode="ssd")

    async def ask() -> None:
        streams = [llm.deltas(prompt_of(i), **LONG) for i in range(3)]
        await anext(streams[0])
        llm.llm.close()
        for stream in streams:
            with pytest.raises(UsageError, match="closed while this request ran"):
                await stream.finished()
        with pytest.raises(UsageError, match="closed"):
            llm.deltas(prompt_of(1))

    asyncio.run(ask())
    llm.close()


@pytest.mark.parametrize("error", [BackendError, SystemExit])
def test_a_step_that_ends_nothing_does_not_go_on_for_ever(monkeypatch, error) -> None:
    """The loop's thread would spin, or be gone, and its requests wait."""
    llm = AsyncLLM.open(tiny_bundle(max_batch=2).path, mode="ar")

    def fail() -> bool:
        raise error("broken beyond repair")

    monkeypatch.setattr(llm.llm.engine._pair.scheduler, "step", fail)
    with pytest.raises(BackendError, match="beyond repair"):
        asyncio.run(llm.generate(prompt_of(1)))
    llm.close()


def test_a_second_reader_is_refused() -> None:
    async def ask(llm: AsyncLLM) -> None:
        stream = llm.deltas(prompt_of(1), **LONG)
        ends = await asyncio.gather(stream.finished(), stream.finished(), return_exceptions=True)
        [refusal] = [each for each in ends if isinstance(each, Exception)]
        assert isinstance(refusal, UsageError)
        assert "another task" in str(refusal)

    with LLM.open(tiny_bundle(max_batch=1).path, mode="ar") as opened:
        llm = AsyncLLM(opened)
        try:
            asyncio.run(ask(llm))
        finally:
            llm.close()


def test_choices_and_chat_are_the_llms(llm: AsyncLLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    params = SamplingParams(1.0, seed=5)

    async def ask() -> tuple[list[Completion], Completion]:
        ids = llm.llm.encode_chat(messages)
        chosen = await llm.choices(ids, params, n=4, max_tokens=12)
        return chosen, await llm.chat(messages, params, max_tokens=12)

    chosen, chatted = asyncio.run(ask())
    assert told(chosen[0]) == told(chatted)
    with LLM.open(tiny_bundle(max_batch=1).path, mode="ar") as plain:
        expected = plain.choices(plain.encode_chat(messages), params, n=4, max_tokens=12)
        assert [told(each) for each in chosen] == [told(each) for each in expected]
        assert told(plain.chat(messages, params, max_tokens=12)) == told(chatted)
