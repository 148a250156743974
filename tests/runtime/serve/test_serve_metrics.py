"""Counts: what the engines did, as Prometheus and as /stats."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, ClassVar

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.serve.rounds import NUM_KEPT, WINDOW_S, RoundLog
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport
from tests.helpers.policies import Scripted
from tests.runtime.serve.house import HI, House, in_house


def row(
    drafted: int = 2, accepted: int = 1, emitted: int = 2, hit: bool | None = True
) -> RowReport:
    kind = ProposalKind.HIT if drafted else ProposalKind.NONE
    return RowReport(0, kind, drafted, accepted, hit, emitted)


def report(number: int, *rows: RowReport, mode: str = "ssd", **more: Any) -> RoundReport:
    return RoundReport(number, rows, RoundPlan(mode, 2, 4), **more)


def test_only_tokens_that_became_text_count_as_accepted() -> None:
    """E11: acceptance counted tokens after the end of the sequence."""
    rounds = RoundLog(num_draft=2)
    rounds(report(1, row(4, 4, 3), row(0, 0, 1, None)))
    assert (rounds.num_drafts, rounds.num_draft_tokens, rounds.num_accepted) == (1, 4, 3)
    assert rounds.accepted_at == [1, 1, 1]
    assert rounds.num_discarded == 2
    assert rounds.num_emitted == 4


def test_the_speed_is_that_of_the_last_full_seconds_and_goes_to_zero() -> None:
    now = [100.0]
    rounds = RoundLog(num_draft=2, clock=lambda: now[0])
    for number in range(20):
        now[0] = 100 + number
        rounds(report(number, row(), row()))
    assert rounds.tokens_per_second() == pytest.approx(4.0)
    now[0] = 120 + WINDOW_S
    assert rounds.tokens_per_second() == 0


def test_the_last_rounds_are_kept_and_can_be_asked_for_from_one_on() -> None:
    rounds = RoundLog(num_draft=2)
    for number in range(1, NUM_KEPT + 11):
        rounds(report(number, row()))
    kept = rounds.since(0)
    assert [kept[0]["number"], kept[-1]["number"], len(kept)] == [11, NUM_KEPT + 10, NUM_KEPT]
    assert [each["number"] for each in rounds.since(NUM_KEPT + 8)] == [NUM_KEPT + 9, NUM_KEPT + 10]


def values(text: str) -> dict[tuple[str, str], float]:
    """(name, its label beside the model's) -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("process_"):  # of the whole process
                found[sample.name, ""] = sample.value
                continue
            labels = [value for name, value in sample.labels.items() if name != "model_name"]
            assert sample.labels["model_name"] == "fake"
            found[sample.name, labels[0] if labels else ""] = sample.value
    return found


def test_metrics_have_the_names_that_dashboards_read() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.rounds(report(1, row(), verify_s=0.5, draft_s=0.25, exposed_s=0.1))
        house.rounds(report(2, row(0, 0, 1, None), mode="ar"))
        await client.post("/v1/completions", json={**HI, "max_tokens": 5})
        await client.post("/v1/completions", json={"prompt": "broken"})
        response = await client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        found = values(response.text)
        for name, expected in {
            ("vllm:spec_decode_num_drafts_total", ""): 1,
            ("vllm:spec_decode_num_draft_tokens_total", ""): 2,
            ("vllm:spec_decode_num_accepted_tokens_total", ""): 1,
            ("vllm:spec_decode_num_accepted_tokens_per_pos_total", "0"): 1,
            ("vllm:prompt_tokens_total", ""): 2 + 6,
            ("vllm:generation_tokens_total", ""): 5,
            ("vllm:request_success_total", "length"): 1,
            ("vllm:request_success_total", "error"): 1,
            ("vllm:time_to_first_token_seconds_count", ""): 2,
            ("vllm:inter_token_latency_seconds_count", ""): 4,
            ("vllm:e2e_request_latency_seconds_count", ""): 2,
            ("vllm:num_requests_running", ""): 0,
            ("ssd:mode", "ar"): 1,
            ("ssd:mode", "ssd"): 0,
            ("ssd:spec_enabled", ""): 0,
            ("ssd:rounds_total", "ssd"): 1,
            ("ssd:proposals_total", "hit"): 1,
            ("ssd:proposals_total", "none"): 1,
            ("ssd:hits_total", "hit"): 2,
            ("ssd:outcomes_total", "hit"): 2,
            ("ssd:hit_rate", "hit"): 1,
            ("ssd:draft_seconds_total", "hidden"): pytest.approx(0.15),
            ("ssd:draft_seconds_total", "exposed"): pytest.approx(0.1),
            ("ssd:verify_seconds_total", ""): 0.5,
            ("ssd:tokens_per_second_per_device", "cpu"): found["ssd:tokens_per_second", ""],
            ("ssd:ready", ""): 1,
            ("ssd:responses_total", "200"): 1,
            ("ssd:responses_total", "500"): 1,
            ("ssd:responses_total", "429"): 0,
            ("ssd:draft_lost", ""): 0,
        }.items():  # fmt: skip
            assert found[name] == expected, name

    in_house(work)


def test_what_operators_act_on_is_told() -> None:
    """Refused requests, a lost draft and the controller's own forecast were seen nowhere."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.gate.clear()
        running = asyncio.create_task(client.post("/v1/completions", json=HI))
        while not house.engines.num_running:
            await asyncio.sleep(0)
        assert (await client.post("/v1/completions", json={**HI, "n": 2})).status_code == 429
        house.engines.gate.set()
        await running
        await client.get("/nothing")
        model = house.engines.llm
        model.has_lost_draft = True
        model.settings = replace(model.settings, policy=Forecasting())
        found = values((await client.get("/metrics")).text)
        assert found["ssd:responses_total", "429"] == 1
        assert found["ssd:responses_total", "200"] == 1
        assert ("ssd:responses_total", "404") not in found, "not an answer of the API"
        assert found["ssd:draft_lost", ""] == 1
        assert found["ssd:predicted_speedup", "model"] == 0.9
        assert found["ssd:predicted_speedup", "lookup"] == 1.2
        assert found["process_resident_memory_bytes", ""] > 1e6

    in_house(work, max_waiting=0)


class Forecasting(Scripted):
    """A policy that knows what speculation would yield."""

    speedups: ClassVar = {"model": 0.9, "lookup": 1.2}

    def __init__(self) -> None:
        super().__init__([PLAIN], 0, 0)


def test_stats_have_the_rounds_that_are_asked_for() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        for number in (1, 2, 3):
            house.rounds(report(number, row(), seconds=0.01, verify_s=0.008))
        found = (await client.get("/stats", params={"after": 1})).json()
        assert [each["number"] for each in found["rounds"]] == [2, 3]
        assert found["rounds"][0]["round_ms"] == 10
        assert found["rounds"][0]["rows"][0]["hit"] is True
        assert found["now_s"] >= found["rounds"][-1]["at_s"]
        assert found["mode"] == "ssd"
        assert (await client.get("/stats", params={"after": -1})).status_code == 400

    in_house(work)
