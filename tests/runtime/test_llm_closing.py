"""A closed LLM has nothing in memory, however long it is kept."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from runtime.async_llm import AsyncLLM
from runtime.llm import LLM
from tests.helpers.tiny_bundle import tiny_bundle

PROMPTS = ([3, 4, 5], [5, 6])
MODES = ("ar", "sd", "ssd")


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """What is freed is freed by its last reference: Python may not look for cycles for minutes, and
    then a pair of engines and the next one are in memory together."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def engines_of(llm: LLM) -> list[weakref.ref[object]]:
    """The sessions of a pair, their caches, and ONNX Runtime's own, which has the weights."""
    pair = llm.engine._pair
    names = ("target_session", "draft_session")
    sessions = [getattr(pair, each) for each in names if hasattr(pair, each)]
    return [
        weakref.ref(each)
        for session in sessions
        for each in (session, session.kv_buffer, session._runtime._sess)
    ]


@pytest.mark.parametrize("mode", MODES)
def test_engines_go_when_the_llm_is_closed(mode: str) -> None:
    with LLM.open(tiny_bundle().path, mode=mode) as llm:
        engines = engines_of(llm)
        llm.generate_batch(PROMPTS, max_tokens=12)
        with llm.stream(PROMPTS[0], max_tokens=30) as left:
            next(left)
        assert all(each() is not None for each in engines)
    assert len(engines) == (3 if mode == "ar" else 6)
    assert [each() for each in engines] == [None] * len(engines)
    llm.close()


@pytest.mark.parametrize("mode", MODES)
def test_engines_go_when_the_async_llm_is_closed(mode: str) -> None:
    async def ask() -> tuple[AsyncLLM, list[weakref.ref[object]]]:
        async with AsyncLLM.open(tiny_bundle().path, mode=mode) as llm:
            engines = engines_of(llm.llm)
            await asyncio.gather(*(llm.generate(each, max_tokens=12) for each in PROMPTS))
            left = llm.stream(PROMPTS[0], max_tokens=30)
            await anext(left)
        return llm, engines

    llm, engines = asyncio.run(ask())
    assert [each() for each in engines] == [None] * (3 if mode == "ar" else 6)
    llm.close()


def test_a_closed_llm_still_tells_what_was_not_as_it_was_asked_for() -> None:
    with LLM.open(tiny_bundle().path, mode="ar") as llm:
        pair = llm.engine._pair
        assert pair is not None
        pair.note = "rows are computed anew"
    assert llm.note == "rows are computed anew"
    assert not llm.has_lost_draft
