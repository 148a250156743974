"""The process: signals while streams run, real sockets, the real pair."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from engines.errors import UsageError
from runtime.cli.entry import main
from runtime.serve.process import bind, run_app
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.serve.house import House

ROOT = Path(__file__).parents[3]
STREAM = {"prompt": "a", "stream": True, "max_tokens": 50}


@contextmanager
def fake_server(drain_timeout_s: float) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and its address."""
    command = [sys.executable, "-m", "tests.runtime.serve.fake_server", str(drain_timeout_s)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.match(r"serving fake at (\S+)", process.stderr.readline())
        assert found is not None
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def test_a_second_signal_ends_streams_at_once_with_a_chunk_that_says_so() -> None:
    with (
        fake_server(drain_timeout_s=60) as (process, url),
        httpx2.Client(base_url=url, timeout=20) as client,
        client.stream("POST", "/v1/completions", json=STREAM) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGINT)
        while client.get("/health").json()["status"] != "draining":
            pass
        process.send_signal(signal.SIGINT)
        *_, last, done = [line for line in lines if line]
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
        assert done == "data: [DONE]"
        assert process.wait(20) == 130


def test_a_port_that_was_taken_while_the_model_was_loaded_is_said_in_one_line() -> None:
    """Two servers may hold a port that nobody listens at yet."""
    with bind("127.0.0.1", 0) as ours, bind("127.0.0.1", ours.getsockname()[1]) as theirs:
        theirs.listen()
        house = House()
        with pytest.raises(UsageError, match="--port"):
            run_app(house.app, house.service, ours, on_ready=pytest.fail, say=lambda _: None)


def test_nothing_is_lost_by_any_fault_and_sigterm_drains(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The whole way: ``serve`` in a process of its own, under load and faults of ``bench``."""
    saved = tmp_path / "result.json"
    given = f"bench serving --bundle {tiny_bundle().path} --mode ssd --faults --concurrency 3"
    given += f" --num-prompts 6 --input-len 6 --output-len 12 --json --quiet --save-result {saved}"
    assert main([*given.split(), "--save-detailed"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    faults = {fault["name"]: fault["reasons"] for fault in figures["faults"]}
    names = ("drops", "malformed", "huge", "slow reader", "SIGTERM")
    assert faults == {name: [] for name in names}
    [run] = figures["runs"]
    assert (run["keys"]["completed"], run["keys"]["failed"]) == (6, 0)
    result = json.loads(saved.read_text())
    assert result["total_output_tokens"] == sum(result["output_lens"]) > 0
    assert result["spec_decode_draft_tokens"] > 0
    assert len(result["generated_texts"]) == 6
