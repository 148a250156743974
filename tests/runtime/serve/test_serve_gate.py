"""The bounded queue: nobody is let in beyond it, and every place comes back once."""

from __future__ import annotations

import asyncio
from time import perf_counter

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.serve.errors import ApiError
from runtime.serve.gate import LONGEST_WAIT_S, Gate, Place
from runtime.serve.generation import Generation, Timing
from tests.runtime.serve.house import HI, House, Visitor, in_house


def test_who_is_refused_is_told_when_a_batch_will_have_ended() -> None:
    """Of three places that decode at once, one too few takes as long as three."""
    gate = Gate(max_batch=3, max_waiting=3)
    gate.admit(6)
    gate.leave(0, 46.0)  # one answer of 46 s: a fifth of the way from 1 s
    assert [gate.retry_after_s(num) for num in (1, 3, 4, 6)] == [10, 10, 20, 20]


def test_an_answer_that_has_ended_tells_how_long_answers_take() -> None:
    """Everyone was told to come back after a second, whatever the model."""
    gate = Gate(max_batch=1, max_waiting=0)
    timing = Timing(perf_counter() - 100.0)
    timing.first_s = 10.0  # it waited before that
    done = Generation(
        [], gate.admit(1), timing, prompt_lens=[1], timeout_s=None, on_close=lambda _: None
    )
    done.close()
    done.close()
    gate.admit(1)
    assert gate.retry_after_s(1) >= 19


@given(
    st.integers(1, 4),
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["in", "out", "again"]), st.integers(1, 6)), max_size=40),
)
def test_never_more_inside_than_there_is_room_for(
    max_batch: int, max_waiting: int, steps: list[tuple[str, int]]
) -> None:
    gate = Gate(max_batch=max_batch, max_waiting=max_waiting)
    inside: list[Place] = []
    gone: list[Place] = []
    for what, num in steps:
        if what == "in" and sum(place.num_choices for place in inside) + num <= gate.capacity:
            inside.append(gate.admit(num))
        elif what == "in":
            with pytest.raises(ApiError) as refusal:
                gate.admit(num)
            assert refusal.value.status == (400 if num > gate.capacity else 429)
            assert 1 <= (refusal.value.retry_after_s or 1) <= LONGEST_WAIT_S
        elif what == "out" and inside:
            gone.append(inside.pop(0))
            gone[-1].leave(float(num))
        elif gone:
            gone[-1].leave()
        assert gate.num_inside == sum(place.num_choices for place in inside)


def test_who_waits_longer_for_slow_answers_is_told_to_wait_longer() -> None:
    gate = Gate(max_batch=1, max_waiting=0)
    for _ in range(50):
        gate.admit(1).leave(20.0)
    gate.admit(1)
    with pytest.raises(ApiError) as refusal:
        gate.admit(1)
    assert refusal.value.headers == {"Retry-After": "20"}


def test_a_full_queue_answers_429_and_the_others_are_served() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        inside = [asyncio.create_task(client.post("/v1/completions", json=HI)) for _ in range(3)]
        while house.service.gate.num_inside < 3:
            await asyncio.sleep(0)
        refused = await client.post("/v1/completions", json=HI)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "queue_full"
        assert (await client.post("/v1/completions", json={**HI, "n": 4})).status_code == 400
        house.engines.gate.set()
        assert [(await each).status_code for each in inside] == [200] * 3
        assert (await client.post("/v1/completions", json=HI)).status_code == 200

    in_house(work, max_waiting=1)


def test_a_refused_request_gives_its_place_back_and_ends_its_own_texts() -> None:
    """The second prompt is refused when the first is under way already."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        body = {"prompt": ["fine", "refused"]}
        assert (await client.post("/v1/completions", json=body)).status_code == 400
        assert house.engines.cancelled == ["fine"]

    in_house(work)


def test_room_is_asked_for_before_a_prompt_is_read() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        visitor = Visitor(house.app, "/v1/completions", {**HI, "stream": True, "n": 2})
        await visitor.num_chunks.acquire()
        house.engines.llm.encode = None  # type: ignore[assignment]
        assert (await client.post("/v1/completions", json=HI)).status_code == 429
        await visitor.leave()

    in_house(work, max_waiting=0)
