"""A written repository in a real Triton Inference Server, where there is one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runtime.embed.triton.config import Parameters
from runtime.embed.triton.repository import write_repository
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.triton
START_S = 120.0
PROMPT = [5, 9, 200, 17]
LONG = {"input_ids": PROMPT, "max_tokens": 140, "ignore_eos": True, "stream": True}
LAW = {"temperature": 0.8, "seed": 2**53 + 1, "top_k": 40}


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


class Server:
    def __init__(self, repository: Path, log: Path) -> None:
        self.port, self.log = free_port(), log
        words = [
            *("tritonserver", "--model-repository", str(repository), "--exit-timeout-secs", "60"),
            *("--http-address", "127.0.0.1", "--http-port", str(self.port)),
            *("--allow-grpc", "false", "--allow-metrics", "false"),
        ]
        with log.open("wb") as out:
            self.process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
        until = time.monotonic() + START_S
        while not self._is_ready():
            assert self.process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < until, log.read_text(errors="replace")[-3000:]

    def _is_ready(self) -> bool:
        with suppress(OSError), self.open("/v2/health/ready") as answer:
            return int(answer.status) == 200
        self.process_wait(0.2)
        return False

    def process_wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def open(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        return urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=60)

    def generate(self, **body: Any) -> dict[str, Any]:
        with self.open("/v2/models/tiny/generate", body) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def stream(self, **body: Any) -> Iterator[dict[str, Any]]:
        with self.open("/v2/models/tiny/generate_stream", body) as answer:
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))


def ids_of(*responses: dict[str, Any]) -> tuple[int, ...]:
    """The server's JSON has a list of one as a number."""
    found: list[int] = []
    for each in responses:
        ids = each.get("output_ids", [])
        found += ids if isinstance(ids, list) else [ids]
    return tuple(found)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("triton")
    repository = folder / "models"
    write_repository(
        repository, "tiny", tiny_bundle(max_batch=3), Parameters(mode="ssd"), on_gpu=False
    )
    running = Server(repository, folder / "log")
    yield running
    if running.process.poll() is None:
        os.kill(running.process.pid, signal.SIGTERM)
        running.process.wait(90)


@pytest.fixture(scope="module")
def alone() -> Iterator[LLM]:
    with LLM.open(tiny_bundle(max_batch=3).path, mode="ar") as llm:
        yield llm


def test_tokens_are_those_of_generate(server: Server, alone: LLM) -> None:
    for law in ({}, LAW):
        done = alone.generate(PROMPT, SamplingParams(**law), max_tokens=40)
        whole = server.generate(input_ids=PROMPT, max_tokens=40, **law)
        assert (ids_of(whole), whole["text_output"]) == (done.token_ids, done.text)
        pieces = [*server.stream(input_ids=PROMPT, max_tokens=40, stream=True, **law)]
        assert ids_of(*pieces) == done.token_ids
        assert len(pieces) > 2
        assert pieces[-1]["finish_reason"] == done.finish_reason


def test_the_other_backends_example_requests_are_served(server: Server, alone: LLM) -> None:
    done = alone.generate("ab", max_tokens=8, stop_token_ids=[2])
    said = server.generate(
        text_input="ab", max_tokens=8, bad_words="", stop_words="", pad_id=2, end_id=2
    )
    assert said["text_output"] == done.text
    parameters = {"stream": False, "temperature": 0, "max_tokens": 8, "end_id": 2}
    assert server.generate(text_input="ab", parameters=parameters)["text_output"] == done.text


def test_a_bad_request_is_told_why(server: Server) -> None:
    for body, told in (({"temperature": -1}, "temperature is -1.0"), ({"n": 2}, "'n' is not")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            server.generate(input_ids=PROMPT, **body)
        assert refused.value.code == 400
        assert told in json.load(refused.value)["error"]


def test_clients_that_leave_free_their_places(server: Server, alone: LLM) -> None:
    for _ in range(6):
        pieces = server.stream(**LONG)
        next(pieces)
        pieces.close()
    done = alone.generate(PROMPT, max_tokens=9)
    assert ids_of(server.generate(input_ids=PROMPT, max_tokens=9)) == done.token_ids


def test_at_sigterm_what_runs_is_finished(server: Server, alone: LLM) -> None:
    """The last test here: the server is gone behind it."""
    done = alone.generate(PROMPT, max_tokens=140, ignore_eos=True)
    found: list[tuple[int, ...]] = []
    begun = threading.Barrier(4)

    def ask() -> None:
        pieces = server.stream(**LONG)
        first = next(pieces)
        begun.wait(60)
        found.append(ids_of(first, *pieces))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for each in askers:
        each.start()
    begun.wait(60)
    os.kill(server.process.pid, signal.SIGTERM)
    for each in askers:
        each.join(90)
    assert found == [done.token_ids] * 3
    assert server.process.wait(90) == 0
