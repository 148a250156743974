"""``batch``: a file answered by one pair in this process, refusals and failures included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BackendError
from runtime.cli.entry import main
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from tests.helpers.tiny_bundle import tiny_bundle

URL = "/v1/completions"


def requests(folder: Path, *bodies: dict[str, Any]) -> Path:
    path = folder / "in.jsonl"
    lines = [
        {"custom_id": f"q{number}", "method": "POST", "url": URL, "body": body}
        for number, body in enumerate(bodies)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(path: Path, made: Path, *options: str) -> int:
    given = ["batch", str(path), str(made), "--bundle", str(tiny_bundle().path), "--mode", "sd"]
    return main([*given, *options])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["response"] for line in path.read_text().splitlines()]


def test_answers_are_those_of_generate_and_a_refusal_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """More lines than places, so that some wait."""
    bodies = [{"prompt": f"river {n}", "seed": n, "max_tokens": 6} for n in range(9)]
    bodies[4] = {"prompt": "x", "best_of": 3}
    made = tmp_path / "out.jsonl"
    assert run(requests(tmp_path, *bodies), made, "--json", "--quiet") == 1
    summary = json.loads(capsys.readouterr().out)
    assert (summary["num_answered"], summary["num_refused"]) == (8, 1)
    answers = read(made)
    with LLM.open(tiny_bundle().path, mode="ar") as llm:
        for n, answer in enumerate(answers):
            if n == 4:
                assert (answer["status_code"], answer["body"]["error"]["param"]) == (400, "best_of")
                continue
            expected = llm.generate(f"river {n}", SamplingParams(1, seed=n), max_tokens=6)
            assert answer["body"]["choices"][0]["text"] == expected.text
    assert summary["num_tokens"] == sum(
        answer["body"]["usage"]["completion_tokens"]
        for answer in answers
        if "usage" in answer["body"]
    )


def test_what_the_engines_failed_on_is_asked_again_by_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [{"prompt": f"hill {n}", "max_tokens": 4, "temperature": 0} for n in range(8)]
    path, made = requests(tmp_path, *bodies), tmp_path / "out.jsonl"
    step, num_steps = Scheduler.step, 0

    def fails_once(self: Scheduler) -> None:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 6:
            raise BackendError("the target failed on purpose")
        step(self)

    monkeypatch.setattr(Scheduler, "step", fails_once)
    assert run(path, made, "--quiet") == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "failed on purpose" in line
    assert "run the same command again" in line
    assert not made.exists()
    assert run(path, made, "--json", "--quiet") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["num_resumed"] + summary["num_answered"] == 8
    assert summary["num_answered"] < 8
    assert [answer["status_code"] for answer in read(made)] == [200] * 8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--replicas", "2"], "--replicas goes with --ray"),
        (["--ray", "--verbose"], "--verbose"),
        (["--cpus-per-replica", "2"], "--cpus-per-replica goes with --ray"),
    ],
)
def test_an_option_that_does_not_fit_is_one_line_and_exit_code_2(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(requests(tmp_path, {"prompt": "a"}), tmp_path / "out.jsonl", *options) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert words in line
