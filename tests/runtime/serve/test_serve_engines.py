"""The server over a real engine loop and a tiny pair, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from engines.errors import BackendError
from runtime.async_llm import AsyncLLM
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from runtime.serve.config import ServeConfig
from runtime.serve.http.app import create_app
from runtime.serve.rounds import RoundLog
from runtime.serve.service import Service
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.serve.house import Visitor, events

PROMPT = [7, 8, 9, 10]
SAMPLED = {"prompt": PROMPT, "temperature": 0.9, "seed": 5, "max_tokens": 24}
Work = Callable[[Service, httpx2.AsyncClient, Any], Awaitable[None]]


@asynccontextmanager
async def opened(mode: str) -> AsyncIterator[tuple[Service, Any]]:
    rounds = RoundLog(num_draft=4)
    async with AsyncLLM.open(tiny_bundle().path, mode=mode, on_round=rounds) as engines:
        service = Service(engines, rounds, ServeConfig(model_name="tiny"))
        yield service, create_app(service, log=lambda _line: None)


def served(work: Work, mode: str = "ssd") -> None:
    async def run() -> None:
        async with opened(mode) as (service, app):
            transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
            async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
                await work(service, client, app)

    asyncio.run(run())


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_answers_are_those_of_the_offline_api_in_every_mode(mode: str) -> None:
    with LLM.open(tiny_bundle().path, mode="ar") as llm:
        law = SamplingParams(0.9, seed=5)
        plain = llm.generate(PROMPT, law, max_tokens=24, logprobs=2)
        stop = plain.text[len(plain.text) // 2 :][:2]
        stopped = llm.generate(PROMPT, law, max_tokens=24, stop=stop)

    async def work(_service: Service, client: httpx2.AsyncClient, _app: Any) -> None:
        async def ask(**more: Any) -> httpx2.Response:
            return await client.post("/v1/completions", json=SAMPLED | more)

        answers = await asyncio.gather(ask(logprobs=2), ask(stop=stop), ask(stream=True), ask(n=2))
        whole, cut, stream, several = answers
        [choice] = whole.json()["choices"]
        assert choice["text"] == plain.text
        assert plain.logprobs is not None
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(
            [each.logprob for each in plain.logprobs], abs=1e-5
        )
        [choice] = cut.json()["choices"]
        assert (choice["text"], choice["stop_reason"]) == (stopped.text, stop)
        assert cut.json()["usage"]["completion_tokens"] == len(stopped.token_ids)
        assert "".join(each["choices"][0]["text"] for each in events(stream)) == plain.text
        assert several.json()["choices"][0]["text"] == plain.text

    served(work, mode)


def test_a_seed_names_its_text_whatever_else_the_server_does() -> None:
    """After a restart, streamed or whole, alone, among others, and as a choice of several."""
    body = SAMPLED | {"top_p": 0.95, "frequency_penalty": 0.3}
    found = []

    async def alone(_service: Service, client: httpx2.AsyncClient, _app: Any) -> None:
        found.append((await client.post("/v1/completions", json=body)).json()["choices"][0]["text"])

    async def among_others(_service: Service, client: httpx2.AsyncClient, _app: Any) -> None:
        asked = [
            client.post("/v1/completions", json=body | more)
            for more in (
                {"seed": 6}, {"prompt": [11] * 20}, {"stream": True}, {"n": 3, "seed": 4}, {},
            )
        ]  # fmt: skip
        other, _, stream, several, whole = await asyncio.gather(*asked)
        assert other.json()["choices"][0]["text"] != found[0]
        found.append("".join(each["choices"][0]["text"] for each in events(stream)))
        found.append(several.json()["choices"][1]["text"])
        found.append(whole.json()["choices"][0]["text"])

    served(alone)
    served(among_others)
    served(among_others, "sd")
    assert found == [found[0]] * 7


def test_a_text_that_nobody_reads_frees_its_slot() -> None:
    async def work(service: Service, client: httpx2.AsyncClient, app: Any) -> None:
        visitor = Visitor(app, "/v1/completions", SAMPLED | {"stream": True, "max_tokens": 150})
        await visitor.num_chunks.acquire()
        await visitor.leave()
        while service.engines.num_running:
            await asyncio.sleep(0.001)
        assert service.gate.num_inside == 0
        assert (await client.post("/v1/completions", json=SAMPLED)).status_code == 200

    served(work)


def test_an_error_of_the_engines_is_a_500_and_the_server_lives_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_scheduler: Scheduler) -> bool:
        _scheduler._abandon()
        raise BackendError("the target failed on purpose")

    async def work(_service: Service, client: httpx2.AsyncClient, _app: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(Scheduler, "step", fail)
            refused = await client.post("/v1/completions", json=SAMPLED)
            assert refused.status_code == 500
            assert "on purpose" in refused.json()["error"]["message"]
            health = await client.get("/health")
            assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert (await client.post("/v1/completions", json=SAMPLED)).status_code == 200
        assert (await client.get("/health")).json()["status"] == "ready"

    served(work, "sd")


def test_a_schema_is_kept_to_and_a_bad_one_is_refused() -> None:
    async def work(_service: Service, client: httpx2.AsyncClient, _app: Any) -> None:
        body = SAMPLED | {"guided_choice": ["[1]", "[2, 3]"]}
        text = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        assert json.loads(text) in ([1], [2, 3])
        refused = await client.post("/v1/completions", json=SAMPLED | {"guided_regex": "("})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "guided_regex"

    served(work)
