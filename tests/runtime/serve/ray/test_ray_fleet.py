"""A fleet as one server: its gate, its counters, texts that nobody wants any more. Without Ray."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from runtime.serve.ray.messages import Counts, Failed, FleetRounds
from runtime.serve.rounds import RoundLog
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundReport, RowReport
from tests.runtime.serve.house import CHAT, HI, events
from tests.runtime.serve.ray.scripted_replicas import Land, Script


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
