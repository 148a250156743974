"""Replicas that are lost on purpose: which texts are asked for again, and of whom. Without Ray."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from runtime.serve.ray import retry
from runtime.serve.ray.retry import Attempts
from tests.runtime.serve.house import HI, events
from tests.runtime.serve.ray.scripted_replicas import TEXT, Land, Script


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "LONGEST_PAUSE_S", 0.0)


def streamed_text(response: httpx2.Response) -> str:
    return "".join(each["choices"][0]["text"] for each in events(response) if each.get("choices"))


@pytest.mark.parametrize("end", ["gone", "ill", "stops"])
def test_a_text_that_has_not_begun_goes_to_another_replica_unseen(end: str) -> None:
    land = Land(Script(0, end))
    response = land.post("/v1/completions", {**HI, "stream": True})
    assert streamed_text(response) == TEXT
    assert not any("error" in each for each in events(response))
    assert len(land.replicas.asked) == 2


@pytest.mark.parametrize("end", ["gone", "ill", "stops"])
def test_a_text_that_has_begun_ends_with_an_error_event(end: str) -> None:
    land = Land(Script(2, end))
    response = land.post("/v1/completions", {**HI, "stream": True})
    *pieces, last = events(response)
    assert [each["choices"][0]["text"] for each in pieces] == ["a", "b"]
    assert last["error"]["code"] == ("engine_error" if end == "ill" else "replica_lost")
    assert len(land.replicas.asked) == 1


def test_a_whole_answer_survives_a_loss_in_its_middle() -> None:
    """Nobody has seen its beginning, so it is begun anew."""
    land = Land(Script(3, "gone"), Script(2, "ill"))
    body = land.post("/v1/completions", HI).json()
    assert body["choices"][0]["text"] == TEXT
    assert body["usage"]["completion_tokens"] == 4


def test_every_attempt_asks_for_the_same_tokens() -> None:
    """The seed of a request without one is drawn once, before the first attempt."""
    land = Land(Script(0, "gone"), Script(0, "gone"))
    land.post("/v1/completions", {**HI, "temperature": 1})
    first, *others = [question for question, _ in land.replicas.asked]
    assert len(others) == 2
    assert all(each is first for each in others)
    again = Land()
    again.post("/v1/completions", {**HI, "temperature": 1})
    assert again.replicas.asked[0][0].params.seed != first.params.seed


def test_a_replica_that_failed_alive_is_avoided_and_a_dead_one_is_rays_to_forget() -> None:
    land = Land(Script(0, "ill"), Script(0, "gone"))
    land.post("/v1/completions", HI)
    assert [avoid for _, avoid in land.replicas.asked] == [(), ("r1",), ("r1",)]


def test_a_fleet_that_fails_again_and_again_is_an_error_in_the_end() -> None:
    land = Land(*[Script(0, "gone", is_taken=False)] * retry.MOST_ATTEMPTS)
    response = land.post("/v1/completions", HI)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "replica_lost"
    assert len(land.replicas.asked) == retry.MOST_ATTEMPTS


@pytest.mark.parametrize("end", ["gone", "stops", "ill"])
def test_a_request_that_kills_replicas_does_not_get_all_of_them(end: str) -> None:
    land = Land(*[Script(0, end)] * retry.MOST_ATTEMPTS)
    response = land.post("/v1/completions", HI)
    assert response.status_code == 500
    assert len(land.replicas.asked) == retry.MOST_FALLEN


def test_one_choice_that_is_lost_is_asked_again_alone() -> None:
    """Of several: the other has what it had."""
    land = Land(Script(0, "gone"), Script(4))
    response = land.post("/v1/completions", {**HI, "n": 2, "stream": True})
    texts = ["", ""]
    for each in events(response):
        for choice in each.get("choices", ()):
            texts[choice["index"]] += choice["text"]
    assert texts == [TEXT, TEXT]
    assert len(land.replicas.asked) == 3


def test_a_request_that_a_replica_refuses_is_asked_of_no_other() -> None:
    land = Land(Script(0, "wrong"))
    response = land.post("/v1/completions", HI)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"
    assert len(land.replicas.asked) == 1


def test_a_text_that_waits_to_be_asked_again_ends_when_nobody_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses: list[Attempts] = []

    def for_an_hour(self: Attempts, *_: object, **__: object) -> float:
        losses.append(self)
        return 3600.0

    monkeypatch.setattr(Attempts, "lost", for_an_hour)

    async def run() -> None:
        land = Land(Script(0, "gone"))
        text = land.fleet.deltas([1, 2])

        async def read() -> list[Any]:
            return [each async for each in text]

        reading = asyncio.ensure_future(read())
        while not losses:
            await asyncio.sleep(0)
        text.cancel()
        assert await asyncio.wait_for(reading, 60) == []
        assert text.completion.finish_reason == "cancelled"
        assert len(land.replicas.asked) == 1

    asyncio.run(run())
