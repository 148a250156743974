"""Two replicas on a local cluster, in this order: their texts, one killed under load, a drain."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from runtime.bench.serving.server import Server
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.serve.ray.ray_fleet import cluster_address, descendants, fleet_of, replicas

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

NUM_SLOTS = 3
NUM_TOKENS = 120
LONG = {"max_tokens": NUM_TOKENS, "temperature": 1, "ignore_eos": True}


def asked(seed: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"river {seed}", "seed": seed, **LONG, **more}


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """What one LLM answers to ``asked(seed)``."""
    with LLM.open(tiny_bundle().path, mode="ar", max_batch=NUM_SLOTS) as llm:
        prompts = [asked(seed)["prompt"] for seed in range(12)]
        laws = [SamplingParams(1, seed=seed) for seed in range(12)]
        done = llm.generate_batch(prompts, laws, max_tokens=NUM_TOKENS, ignore_eos=True)
        return [each.text for each in done]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Server]:
    given = f"--bundle {tiny_bundle().path} --mode sd --num-draft 1 --served-model-name tiny"
    with fleet_of([*given.split(), *["--replicas", "2", "--cpus-per-replica", "0.5"]]) as server:
        yield server


async def whole(client: httpx2.AsyncClient, seed: int, **more: Any) -> str:
    response = await client.post("/v1/completions", json=asked(seed, **more))
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


class Stream:
    """One streamed answer, read as it comes."""

    def __init__(self, client: httpx2.AsyncClient, seed: int, begun: asyncio.Semaphore) -> None:
        self.seed = seed
        self.text = ""
        self.error: dict[str, Any] | None = None
        self.is_closed = False
        self._begun = begun
        self.task = asyncio.create_task(self._read(client))

    async def _read(self, client: httpx2.AsyncClient) -> None:
        body = asked(self.seed, stream=True)
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    self.is_closed = True
                elif line:
                    self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.error = event["error"]
            return
        text = event["choices"][0]["text"]
        if text and not self.text:
            self._begun.release()
        self.text += text


def client_of(server: Server) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=server.url, timeout=600)


def test_texts_are_those_of_one_engine_pair(fleet: Server, texts: list[str]) -> None:
    async def run() -> None:
        async with client_of(fleet) as client:
            begun = asyncio.Semaphore(0)
            stream = Stream(client, 2, begun)
            assert await asyncio.gather(whole(client, 0), whole(client, 1)) == texts[:2]
            await stream.task
            assert (stream.text, stream.error, stream.is_closed) == (texts[2], None, True)
            refused = await client.post("/v1/completions", json=asked(0, nope=1))
            assert refused.status_code == 400
            assert len(refused.headers.get_list("x-request-id")) == 1

    asyncio.run(run())


def test_a_conversation_stays_with_the_replica_that_remembers_it(fleet: Server) -> None:
    """Each one's second turn finds its first in the cache: by chance, one time in 64."""

    async def cached(client: httpx2.AsyncClient, number: int) -> int:
        prompt = f"{number}: a tale of the river and the hill"
        body = {"prompt": prompt, "max_tokens": 2, "user": f"reader {number}"}
        await client.post("/v1/completions", json=body)
        body["prompt"] += " and the sea behind it"
        response = await client.post("/v1/completions", json=body)
        details = response.json()["usage"]["prompt_tokens_details"]
        return int(details["cached_tokens"])

    async def run() -> None:
        async with client_of(fleet) as client:
            for number in range(6):
                assert await cached(client, number) > 0

    asyncio.run(run())


async def num_rounds(client: httpx2.AsyncClient) -> float:
    """Of those replicas that have ended a text since."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("ssd:rounds_total"))


def test_a_client_that_leaves_frees_the_replica(fleet: Server) -> None:
    """Sixteen texts take more than 200 rounds of whichever replica does the most of them."""

    async def run() -> None:
        async with client_of(fleet) as client:
            await whole(client, 0, user="leaver", max_tokens=1)
            before = await num_rounds(client)
            body = asked(3, n=16, stream=True, user="leaver")
            async with client.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    if line:
                        break
            while (await client.get("/health")).json()["running"]:
                pass
            await whole(client, 0, user="leaver", max_tokens=1)
            assert await num_rounds(client) - before < 100

    asyncio.run(run())


def test_a_batch_file_is_answered_on_the_cluster_as_here(
    fleet: Server, tmp_path: Path, texts: list[str]
) -> None:
    del fleet  # its cluster
    lines: list[dict[str, Any]] = [
        {"custom_id": f"q{seed}", "method": "POST", "url": "/v1/completions", "body": asked(seed)}
        for seed in range(7)
    ]
    lines[3]["body"] = {"prompt": "x", "nope": 1}
    given, made = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = f"--bundle {tiny_bundle().path} --mode sd --json --quiet --ray --replicas 1"
    options += f" --cpus-per-replica 0.5 --ray-address {cluster_address()}"
    command = [sys.executable, "-m", "runtime", "batch", str(given), str(made), *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert (done.returncode, bool(done.stdout)) == (1, True), done.stderr
    summary = json.loads(done.stdout)
    assert (summary["num_answered"], summary["num_refused"]) == (6, 1)
    answers = [json.loads(line) for line in made.read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == [f"q{seed}" for seed in range(7)]
    for seed, each in enumerate(answers):
        response = each["response"]
        if seed == 3:
            assert response["body"]["error"]["param"] == "nope"
        else:
            assert response["body"]["choices"][0]["text"] == texts[seed]


def test_a_replica_killed_under_load_costs_only_what_it_had_begun_to_stream(
    fleet: Server, texts: list[str]
) -> None:
    """Both take as many streams as they have room for; once more have begun than one replica
    decodes at once, each has begun some."""

    async def run() -> None:
        async with client_of(fleet) as client:
            begun = asyncio.Semaphore(0)
            streams = [Stream(client, seed, begun) for seed in range(2 * (NUM_SLOTS + 1))]
            wholes = [asyncio.create_task(whole(client, seed)) for seed in range(8, 12)]
            for _ in range(NUM_SLOTS + 1):
                await begun.acquire()
            victim, other = replicas()
            os.kill(victim, signal.SIGKILL)
            assert await asyncio.gather(*wholes) == texts[8:12]
            await asyncio.gather(*(stream.task for stream in streams))
            for stream in streams:
                assert stream.is_closed
                if stream.error is None:
                    assert stream.text == texts[stream.seed]
                else:
                    assert stream.error["code"] == "replica_lost"
                    assert texts[stream.seed].startswith(stream.text)
                    assert stream.text, "it had not begun and was lost"
            lost = [stream for stream in streams if stream.error is not None]
            assert 0 < len(lost) <= NUM_SLOTS
            while not {other} < set(replicas()):  # Ray Serve starts another
                await client.get("/health")
            assert await whole(client, 0) == texts[0]

    asyncio.run(run())


def test_sigterm_lets_streams_end_and_leaves_no_process(fleet: Server, texts: list[str]) -> None:
    async def run() -> None:
        async with client_of(fleet) as client:
            begun = asyncio.Semaphore(0)
            stream = Stream(client, 0, begun)
            await begun.acquire()
            fleet.terminate()
            while (await client.get("/health")).status_code != 503:
                pass
            refused = await client.post("/v1/completions", json=asked(1))
            assert refused.json()["error"]["code"] == "draining"
            await stream.task
            assert (stream.text, stream.error) == (texts[0], None)

    asyncio.run(run())
    assert fleet.wait() == 0
    marks = ("ray::", "raylet", "gcs_server")
    assert not [line for line in descendants().values() if any(mark in line for mark in marks)]
