"""The default pair with its real weights, asked over HTTP: the answers are plain decoding's."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from runtime.async_llm import AsyncLLM
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from runtime.serve.config import ServeConfig
from runtime.serve.http.app import create_app
from runtime.serve.rounds import RoundLog
from runtime.serve.service import Service
from tests.runtime.test_exactness_real import real_bundle

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

QUESTIONS = ("Name three rivers.", "What is a prime number?", "Write a line about the sea.")


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


async def ask_all(llm: LLM, rounds: RoundLog) -> list[Any]:
    """All questions at once, each with its own seed."""
    async with AsyncLLM(llm) as engines:
        service = Service(engines, rounds, ServeConfig(model_name="real"))
        app = create_app(service, log=lambda _line: None)
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server") as client:
            answers = await asyncio.gather(*(
                client.post("/v1/chat/completions", json={
                    "messages": messages(question), "temperature": 0.7, "seed": seed,
                    "max_tokens": 32, "logprobs": True,
                })
                for seed, question in enumerate(QUESTIONS)
            ))  # fmt: skip
        return [answer.json()["choices"][0] for answer in answers]


def test_answers_over_http_are_those_of_plain_decoding() -> None:
    path = real_bundle("int8").path
    with LLM.open(path, mode="ar") as llm:
        expected = [
            llm.chat(messages(question), SamplingParams(0.7, seed=seed), max_tokens=32, logprobs=0)
            for seed, question in enumerate(QUESTIONS)
        ]
    rounds = RoundLog(num_draft=4)
    llm = LLM.open(path, mode="ssd", max_batch=3, on_round=rounds)
    choices = asyncio.run(ask_all(llm, rounds))
    for choice, completion in zip(choices, expected, strict=True):
        assert choice["message"]["content"] == completion.text
        entries = choice["logprobs"]["content"]
        assert completion.logprobs is not None
        assert [each["logprob"] for each in entries] == pytest.approx(
            [each.logprob for each in completion.logprobs], abs=1e-4
        )
    assert rounds.num_accepted > 0, "nothing was speculated"
