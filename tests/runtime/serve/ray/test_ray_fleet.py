"""Texts of a fleet, with replicas that are lost on purpose. Without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from engines.errors import BackendError, UsageError
from runtime.completion import Completion, Delta
from runtime.serve.config import ServeConfig
from runtime.serve.http.app import create_app
from runtime.serve.ray import retry
from runtime.serve.ray.fleet import Fleet, FleetService, Question
from runtime.serve.ray.messages import Begun, Counts, Ended, Failed, FleetRounds, Message
from runtime.serve.ray.retry import Attempts
from runtime.serve.rounds import RoundLog
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundReport, RowReport
from tests.runtime.cli.fake_llm import stats
from tests.runtime.serve.fake_engines import FakeModel
from tests.runtime.serve.house import CHAT, HI, events

TEXT = "abcd"


class ReplicaGoneError(Exception):
    """What Ray would raise."""


@dataclass
class Script:
    """What one attempt does: so many pieces, and an end: done, gone, stops, ill, wrong, hangs.
    One that is not ``taken`` ends before a replica has it."""

    num_pieces: int
    end: str = "done"
    is_taken: bool = True


class FakeResponse:
    def __init__(self, replica: str, script: Script) -> None:
        self.replica = replica
        self.script = script
        self.is_cancelled = asyncio.Event()

    def cancel(self) -> None:
        self.is_cancelled.set()

    async def __aiter__(self) -> AsyncIterator[Message]:
        if self.script.is_taken:
            yield Begun(self.replica)
        for letter in TEXT[: self.script.num_pieces]:
            await asyncio.sleep(0)
            yield Delta(letter, (ord(letter),), None)
        match self.script.end:
            case "gone":
                raise ReplicaGoneError
            case "ill":
                yield Failed.by(BackendError("the target failed"))
            case "wrong":
                yield Failed.by(UsageError("max-tokens is 0"))
            case "stops":
                return
            case "hangs":
                await self.is_cancelled.wait()
                raise RuntimeError("cancelled")
            case _:
                counts = Counts.of(RoundLog(num_draft=0))
                yield Ended(completion(), counts, has_lost_draft=False, note="sd is fastest now")


def completion() -> Completion:
    return Completion(
        text=TEXT,
        token_ids=tuple(map(ord, TEXT)),
        finish_reason="stop",
        mode="ssd",
        note=None,
        prompt_tokens=2,
        stats=stats(num_tokens=4),
    )


@dataclass
class Replicas:
    """``scripts`` are used up, attempt by attempt; further ones are done."""

    scripts: list[Script]
    asked: list[tuple[Question, tuple[str, ...]]] = field(default_factory=list)
    responses: list[FakeResponse] = field(default_factory=list)

    def __call__(self, question: Question, *, avoid: Sequence[str]) -> FakeResponse:
        script = self.scripts.pop(0) if self.scripts else Script(4)
        self.asked.append((question, tuple(avoid)))
        self.responses.append(FakeResponse(f"r{len(self.asked)}", script))
        return self.responses[-1]


class Land:
    """A fleet's server, over scripted replicas."""

    def __init__(self, *scripts: Script, **config: Any) -> None:
        model: Any = FakeModel()
        model.intake = SimpleNamespace(answer=self._check)
        self.replicas = Replicas(list(scripts))
        self.fleet = Fleet(
            model,
            FleetRounds(),
            self.replicas,
            is_loss=lambda error: isinstance(error, ReplicaGoneError),
        )
        config = {"model_name": "fake", "has_page": False, **config}
        self.service = FleetService(self.fleet, ServeConfig(**config), num_replicas=3)
        self.app = create_app(self.service, log=lambda _line: None)

    def _check(self, prompt: Sequence[int], *_: object) -> None:
        if "refused" in "".join(map(chr, prompt)):
            raise UsageError("the prompt was refused")

    def client(self) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://server")

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        async def ask() -> httpx2.Response:
            async with self.client() as client:
                return await client.post(path, json=body)

        found = asyncio.run(ask())
        assert self.service.gate.num_inside == 0
        assert not self.fleet.open
        return found


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


def test_what_cannot_be_served_is_refused_before_a_stream_begins() -> None:
    land = Land()
    response = land.post("/v1/completions", {"prompt": "refused", "stream": True})
    assert response.status_code == 400
    assert land.replicas.asked == []


def test_turns_of_a_conversation_have_one_key_and_choices_share_it() -> None:
    land = Land()
    land.post("/v1/chat/completions", {**CHAT, "n": 2})
    more = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
    land.post("/v1/chat/completions", {"messages": [*CHAT["messages"], *more]})
    assert len({question.key for question, _ in land.replicas.asked}) == 1
    land.post("/v1/chat/completions", {**CHAT, "user": "somebody"})
    assert len({question.key for question, _ in land.replicas.asked}) == 2


def test_a_reader_that_leaves_cancels_the_replicas_work() -> None:
    async def run() -> None:
        land = Land(Script(2, "hangs"))
        text = land.fleet.deltas([1, 2])
        reader = aiter(text)
        assert (await anext(reader)).text == "a"
        await anext(reader)
        waiting = asyncio.ensure_future(anext(reader))
        await asyncio.sleep(0)
        assert (land.fleet.num_running, land.fleet.num_waiting) == (1, 0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert land.replicas.responses[0].is_cancelled.is_set()
        assert land.fleet.num_running == 0

    asyncio.run(run())


def test_a_drain_that_takes_too_long_ends_a_stream_with_what_there_is() -> None:
    async def run() -> httpx2.Response:
        land = Land(Script(2, "hangs"))
        async with land.client() as client:
            asking = asyncio.ensure_future(
                client.post("/v1/completions", json={**HI, "stream": True})
            )
            while not (land.replicas.responses and land.fleet.num_running):
                await asyncio.sleep(0)
            assert not await land.service.drain(0)
            return await asking

    *pieces, last = events(asyncio.run(run()))
    assert [each["choices"][0]["text"] for each in pieces] == ["a", "b"]
    assert last["choices"][0]["finish_reason"] == "abort"


def test_health_tells_the_note_of_now_beside_the_mode_of_now() -> None:
    """It told the note of before the first round for good, beside a mode that it gave no reason
    for, and never that a draft was lost."""
    land = Land()
    land.fleet.llm.note = "ar until it is measured"
    land.post("/v1/completions", {"prompt": "x"})

    async def ask() -> httpx2.Response:
        async with land.client() as client:
            return await client.get("/health")

    assert asyncio.run(ask()).json()["note"] == "sd is fastest now"


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


def test_the_gate_lets_in_what_all_replicas_decode_together() -> None:
    land = Land(max_waiting=1)
    assert land.service.gate.max_batch == 2 * 3
    assert land.service.gate.capacity == 7


def log_with(num_rounds: int) -> Counts:
    log = RoundLog(num_draft=2)
    row = RowReport(
        slot=0, kind=ProposalKind.HIT, num_drafted=2, accepted=1, hit=True, num_emitted=2
    )
    for number in range(num_rounds):
        log(RoundReport(number=number, rows=(row,), verify_s=0.5))
    return Counts.of(log)


def test_counters_are_sums_of_all_replicas_and_never_fall() -> None:
    """A replica says how much it has done in all; what a lost one did stays."""
    rounds = FleetRounds()
    rounds.take("a", log_with(2))
    rounds.take("b", log_with(3))
    rounds.take("a", log_with(4))
    rounds.take("a", log_with(4))
    assert sum(rounds.rounds_by_mode.values()) == 7
    assert (rounds.num_drafts, rounds.num_draft_tokens, rounds.num_accepted) == (7, 14, 7)
    assert rounds.proposals["hit"] == 7
    assert rounds.verify_s == 3.5
    rounds.take("c", log_with(1))  # it came for b, which is gone
    assert rounds.num_drafts == 8


def test_metrics_of_a_fleet_are_those_of_a_server() -> None:
    land = Land()
    land.post("/v1/completions", HI)

    async def read() -> str:
        async with land.client() as client:
            assert (await client.get("/stats")).json()["rounds"] == []
            assert (await client.get("/")).status_code == 404, "a page without rounds to show"
            return (await client.get("/metrics")).text

    metrics = asyncio.run(read())
    assert 'vllm:generation_tokens_total{model_name="fake"} 4.0' in metrics
    assert 'ssd:queue_capacity{model_name="fake"} 70.0' in metrics


@pytest.mark.parametrize("kind", ["MissingDependencyError", "NoSuchError", "as_line"])
def test_an_error_of_an_unfit_kind_is_still_an_error(kind: str) -> None:
    assert str(Failed(kind, "what happened").as_error()) == "what happened"
