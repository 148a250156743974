"""Requests that do not come to their end: clients that leave, limits, a server that stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import httpx2
import pytest

from engines.errors import BackendError
from runtime.sampling.params import SamplingParams
from tests.runtime.serve.fake_engines import FakeDeltas
from tests.runtime.serve.house import CHAT, HI, House, Visitor, events, in_house

STREAM = {**HI, "stream": True}


@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_leaves_its_stream_ends_its_texts(n: int) -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        visitor = Visitor(house.app, "/v1/completions", {**STREAM, "n": n})
        await visitor.num_chunks.acquire()
        await visitor.leave()
        assert house.engines.cancelled == ["hi"] * n
        assert house.lines[-1].is_cut
        house.engines.gate.set()
        assert (await client.post("/v1/completions", json=HI)).status_code == 200

    in_house(work)


def test_a_client_that_leaves_before_its_answer_ends_its_text() -> None:
    async def work(house: House, _client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        visitor = Visitor(house.app, "/v1/chat/completions", CHAT)
        while not house.engines.num_running:
            await asyncio.sleep(0)
        await visitor.leave()
        assert house.engines.cancelled == ["<user>hi"]
        assert house.lines[-1].is_cut

    in_house(work)


def test_an_answer_that_takes_too_long_is_ended() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        response = await client.post("/v1/completions", json=HI)
        assert response.status_code == 504
        assert response.json()["error"]["code"] == "timeout"
        *pieces, last = events(await client.post("/v1/completions", json=STREAM))
        assert pieces[0]["choices"][0]["text"] == "H"
        assert last["error"]["code"] == "timeout"
        assert house.engines.cancelled == ["hi"] * 2

    in_house(work, request_timeout_s=0.05)


def read_when(house: House, is_time: threading.Event) -> None:
    """Requests for "slow" are not begun before."""
    begin = house.engines.deltas

    def deltas(prompt: Sequence[int], params: SamplingParams, **options: Any) -> FakeDeltas:
        if "".join(map(chr, prompt)) == "slow":
            assert is_time.wait(20), "the event loop waits for this"
        return begin(prompt, params, **options)

    house.engines.deltas = deltas  # type: ignore[method-assign]


def test_a_request_that_takes_long_to_read_holds_up_nobody_else() -> None:
    """A hundred bad words for each of 16 choices held all streams for seconds."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        is_time = threading.Event()
        read_when(house, is_time)
        slow = asyncio.create_task(client.post("/v1/completions", json={"prompt": "slow"}))
        while not house.service.gate.num_inside:
            await asyncio.sleep(0)
        assert (await client.post("/v1/completions", json=HI)).status_code == 200
        is_time.set()
        assert (await slow).status_code == 200

    in_house(work)


def test_a_request_that_was_read_while_the_server_began_to_drain_is_not_begun() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        is_time = threading.Event()
        read_when(house, is_time)
        slow = asyncio.create_task(client.post("/v1/completions", json={"prompt": "slow"}))
        while not house.service.gate.num_inside:
            await asyncio.sleep(0)
        draining = asyncio.create_task(house.service.drain(30))
        await asyncio.sleep(0)
        is_time.set()
        assert (await slow).json()["error"]["code"] == "draining"
        assert await draining
        assert house.engines.cancelled == ["slow"]

    in_house(work)


@pytest.mark.parametrize(
    ("prompt", "code"), [("broken", "engine_error"), ("bug", "internal_error")]
)
def test_a_failure_ends_its_own_request_only(prompt: str, code: str) -> None:
    """Never a dead server; and of an error nobody foresaw the client learns no details."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        body = {"prompt": ["fine", prompt]}
        response = await client.post("/v1/completions", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (500, code)
        assert "secret" not in response.text
        last = events(await client.post("/v1/completions", json={**body, "stream": True}))[-1]
        assert last["error"]["code"] == code
        assert "fine" in house.engines.cancelled, "its other text is not decoded for nobody"
        assert (await client.post("/v1/completions", json=HI)).status_code == 200

    in_house(work)


def test_health_says_when_the_engines_failed_and_when_they_are_back() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        assert (await client.get("/health")).json()["status"] == "ready"
        house.engines.error = BackendError("the target's stream failed")
        response = await client.get("/health")
        assert (response.status_code, response.json()["status"]) == (503, "failed")
        assert "stream failed" in response.json()["note"]
        house.engines.error = None
        assert (await client.get("/health")).status_code == 200

    in_house(work)


def test_a_draft_that_was_given_up_is_told_and_no_reason_to_stop() -> None:
    """V6: drafting silently stopped."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.llm.note = "the draft was given up"
        response = await client.get("/health")
        assert (response.status_code, response.json()["note"]) == (200, "the draft was given up")

    in_house(work)


def test_draining_lets_streams_finish_and_takes_nobody_else() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        visitor = Visitor(house.app, "/v1/completions", STREAM)
        await visitor.num_chunks.acquire()
        draining = asyncio.create_task(house.service.drain(30))
        await asyncio.sleep(0)
        refused = await client.post("/v1/completions", json=HI)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        health = await client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        house.engines.gate.set()
        assert await draining, "all were complete"
        await visitor.task
        assert visitor.events[-2]["choices"][0]["finish_reason"] == "stop"
        assert visitor.events[-1] == "[DONE]"

    in_house(work)


def test_at_the_deadline_streams_end_with_a_chunk_that_says_so() -> None:
    async def work(house: House, _client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        options = {"stream": True, "stream_options": {"include_usage": True}}
        visitor = Visitor(house.app, "/v1/completions", {**HI, **options})
        whole = Visitor(house.app, "/v1/completions", HI)
        await visitor.num_chunks.acquire()
        while house.engines.num_running < 2:
            await asyncio.sleep(0)
        assert not await house.service.drain(0.01)
        await asyncio.gather(visitor.task, whole.task)
        *_, last, usage, done = visitor.events
        assert last["choices"][0]["finish_reason"] == "abort"
        assert usage["usage"]["completion_tokens"] == 1
        assert done == "[DONE]"
        assert whole.status == 503, "a part of an answer is none"

    in_house(work)


def test_with_nobody_inside_draining_takes_no_time() -> None:
    async def work(house: House, _client: httpx2.AsyncClient) -> None:
        assert await asyncio.wait_for(house.service.drain(60), 5)

    in_house(work)
