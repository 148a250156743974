"""``python -m runtime bench``: reports, JSON and what it refuses."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from runtime.cli.entry import main
from runtime.device.cores import available_cores
from runtime.llm import LLM
from runtime.spec.outcome_log import read_log
from tests.helpers.tiny_bundle import tiny_bundle

HEADER = {"kind", "command", "machine", "other_cores", "versions", "figures", "formulas"}
two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="ssd needs two cores")


def report(capsys: pytest.CaptureFixture[str], *arguments: str, kind: str | None = None) -> dict:
    assert main(["bench", *arguments, "--json"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1
    record = json.loads(out)
    assert set(record) == HEADER
    assert record["kind"] == (kind or arguments[0])
    assert record["command"].startswith(f"python -m runtime bench {arguments[0]}")
    assert record["machine"]["cores"] >= 1
    assert record["versions"]["numpy"]
    return record


def test_host_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--rounds", "30", "--batch", "1,2", "--modes", "ssd,ar", "--branches", "3")
    figures = report(capsys, "host", *options)["figures"]
    assert (figures["rounds"], figures["num_draft"], figures["num_branches"]) == (30, 2, 3)
    cases = figures["cases"]
    assert [(case["mode"], case["batch"]) for case in cases] == [
        ("ssd", 1),
        ("ssd", 2),
        ("ar", 1),
        ("ar", 2),
    ]
    assert set(cases[0]["round_us"]) == {"num", "low", "median", "high", "p99"}
    assert [case["budget_us"] for case in cases] == [100, None, 100, None]


def test_host_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "host", "--rounds", "30", "--batch", "1", "--modes", "ssd"]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == ("$ python -m runtime bench host --rounds 30 --batch 1 --modes ssd")
    assert lines[1].startswith("machine: ")
    assert "other processes used" in lines[1]
    assert lines[2].startswith("versions: python ")
    assert "mode batch round us quartiles p99 engine host us budget" in lines
    assert any(line.startswith("ssd 1 draft adopt ") for line in lines)
    assert any(line.startswith("host_us = ") for line in lines)
    assert "30 of 30" in err


@two_cores
def test_lanes_on_a_tiny_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(tiny_bundle().path)
    small = ("--segments", "2", "--rounds", "3", "--hops", "5")
    figures = report(capsys, "lanes", "--bundle", bundle, *small)["figures"]
    arrangements = figures["arrangements"]
    assert [each["name"] for each in arrangements] == ["alone", "thread", "process"]
    assert [each["verify_ms"]["num"] for each in arrangements] == [6, 6, 6]
    assert [each["hit_rate"] for each in arrangements] == [None, 1.0, 1.0]
    assert set(figures["hops_us"]) == {"thread", "pipe", "semaphore"}
    assert set(figures["verdict"]) == {
        "contention_us",
        "hop_loss_us",
        "gain_us",
        "gain_share",
        "busy_share",
    }
    assert main(["bench", "lanes", "--bundle", bundle, "--quiet", *small]) == 0
    out, err = capsys.readouterr()
    assert "a process instead of a thread: " in out
    assert err == ""


@two_cores
def test_overlap_on_a_tiny_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat\nsat on the mat\n")
    options = ("--bundle", str(tiny_bundle(tied=False).path), "--prompts", str(prompts))
    options += ("--max-tokens", "12", "--fallback", "zero")
    figures = report(capsys, "overlap", *options)["figures"]
    assert figures["num_rounds"] > 2
    gaps = [figures[name] for name in ("after_hit", "after_miss") if figures[name]]
    # Each text's last outcome is not looked up.
    assert sum(each["gap_ms"]["num"] for each in gaps) == figures["num_rounds"] - 2
    assert figures["hidden_ms"] + figures["exposed_ms"] > 0
    assert main(["bench", "overlap", *options]) == 0
    assert "drafting hidden: " in capsys.readouterr().out


PROFILE = {
    "format": "ssd-replay",
    "version": 1,
    "about": "a quick pair",
    "laws": {"even": {"hit": {"accept": [0.8], "exponent": 1.9}}},
    "runs": [
        {
            "name": "one row",
            "law": "even",
            "batch": 1,
            "target_ms": 10,
            "draft_ms": 1,
            "num_draft": 3,
            "num_branches": 6,
            "published": {"ar": 100, "ssd": 200},
            "goal": 10_000,
        }
    ],
}


def test_replay_of_a_profile(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "quick.json"
    path.write_text(json.dumps(PROFILE))
    options = ("--replay", str(path), "--rounds", "256")
    figures = report(capsys, *options, kind="replay")["figures"]
    (run,) = figures["runs"]
    assert (figures["clock"], figures["limit"], run["goal"]) == ("virtual", 0.03, 10_000)
    assert run["is_met"] is False
    settings = run["settings"]
    named = [(each["role"], each["mode"], each["fallback"]) for each in settings]
    assert named[:4] == [
        ("published", "ar", None),
        ("published", "sd", None),
        ("published", "ssd", "zero"),
        ("published", "ssd", "jit"),
    ]
    assert [each["published"] for each in settings] == [100, None, None, 200, None]
    assert settings[0]["measured"]["tokens_s"] == pytest.approx(100)
    assert all(each["num_rounds"] == 256 for each in settings)
    assert main(["bench", *options]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert any(line.startswith("ssd K=3 W=6 jit ") for line in lines)
    assert any(line.startswith("best: ssd ") for line in lines)
    assert "goal: 10000 tokens/s with the best setting: MISSED" in lines
    assert any(line.startswith("predicted = ") for line in lines)
    assert any(line.startswith("after hit, after miss = ") for line in lines)
    assert not any(line.startswith("host ms = ") for line in lines), "no such column"
    assert "one row: " in err


@two_cores
def test_outcomes_are_logged_and_replayed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The whole way of a user's own texts: bundle, log, law, replay."""
    prompts, path = tmp_path / "prompts.txt", tmp_path / "outcomes.jsonl"
    prompts.write_text("the cat\nsat on the mat\n")
    options = ("--bundle", str(tiny_bundle(tied=False).path), "--prompts", str(prompts))
    options += ("--max-tokens", "24", "--log-outcomes", str(path))
    figures = report(capsys, *options, kind="outcomes")["figures"]
    assert (figures["num_texts"], figures["fallback"]) == (2, "jit")
    log = read_log(path)
    assert len(log.rounds) == figures["num_rounds"]
    assert {found.text for found in log.rounds} == {0, 1}
    assert sum(found.hit is None for found in log.rounds) == 2  # the last one of each text
    emitted = [sum(r.accepted + 1 for r in log.rounds if r.text == text) for text in (0, 1)]
    assert all(tokens <= 24 for tokens in emitted)
    times = ("--target-ms", "10", "--draft-ms", "1", "--batch", "2", "--rounds", "50")
    found = report(capsys, "--replay", str(path), *times, kind="replay")["figures"]
    assert found["runs"][0]["batch"] == 2
    assert main(["bench", "--replay", str(path), *times, "--quiet"]) == 0
    assert "(luck decides: 50 rounds, 400 tell more)" in capsys.readouterr().out


@two_cores
@pytest.mark.parametrize(
    ("number", "word", "code"),
    [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)],
)
def test_a_signal_keeps_the_outcomes_of_the_answers_so_far(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    word: str,
    code: int,
) -> None:
    """``timeout`` and ctrl-C in the last of many prompts left no file."""
    generate, asked = LLM.generate, []

    def answer(llm: LLM, *arguments: Any, **named: Any) -> Any:
        asked.append(llm)
        if len(asked) == 2:
            signal.raise_signal(number)
        return generate(llm, *arguments, **named)

    monkeypatch.setattr(LLM, "generate", answer)
    prompts, path = tmp_path / "prompts.txt", tmp_path / "outcomes.jsonl"
    prompts.write_text("the cat\nsat on\nthe mat\n")
    options = ["--bundle", str(tiny_bundle(tied=False).path), "--prompts", str(prompts)]
    options += ["--max-tokens", "12", "--log-outcomes", str(path)]
    assert main(["bench", *options]) == code
    out, err = capsys.readouterr()
    assert err.endswith(f"\n{word}; the outcomes of 1 of 3 prompts are in {path}\n")
    assert f" of 1 texts (of 3: {word})" in out
    assert {found.text for found in read_log(path).rounds} == {0}
    assert sorted(tmp_path.iterdir()) == [path, prompts]


def test_prompts_are_not_replaced_by_their_outcomes(capsys, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the cat"}')
    link = tmp_path / "link.jsonl"
    link.symlink_to(prompts)
    for path in (prompts, link, tmp_path):
        options = ["--bundle", "none", "--prompts", str(prompts), "--log-outcomes", str(path)]
        assert main(["bench", *options]) == 2
        assert "--log-outcomes" in capsys.readouterr().err
    assert prompts.read_text() == '{"prompt": "the cat"}'


@pytest.mark.parametrize("ms", ["0", "-1", "nan", "5e-324", "1e300"])
def test_a_time_that_no_call_takes_is_refused(capsys, ms: str) -> None:
    assert main(["bench", "--replay", "log.jsonl", f"--target-ms={ms}", "--draft-ms", "1"]) == 2
    assert "is not a number of milliseconds from 1e-06" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--replay, --log-outcomes, --dataset, or a KIND (host, lanes, overlap, serving)"),
        (["--quiet"], "KIND"),
        (["--rounds", "5", "host"], "--rounds stands before 'host'"),
        (["--json", "host"], "'host' is no file named .json; --json of a KIND stands behind"),
        (["--rounds", "5"], "--rounds goes with --replay"),
        (["--bundle", "x"], "--bundle goes with --log-outcomes or --dataset"),
        (["--replay", "absent.json"], "absent.json"),
        (["--replay", "absent"], "budgets"),
        (["--replay", "budgets", "--dataset", "x"], "two measurements"),
        (["--replay", "budgets", "--bundle", "x"], "--bundle has no effect with --replay"),
        (["--replay", "budgets", "--clock", "wall"], "--clock"),
        (["--replay", "budgets", "--run", "B=7"], "no run of budgets has 'B=7'"),
        (["--replay", "budgets", "--target-ms", "3"], "--target-ms goes with an outcome log"),
        (["--replay", "absent.jsonl"], "--target-ms"),
        (["--replay", "absent.jsonl", "--target-ms", "0"], "--target-ms"),
        (["--replay", "absent.jsonl", "--target-ms", "9", "--draft-ms", "1"], "absent.jsonl"),
        (["--log-outcomes", "x"], "--log-outcomes needs a bundle to run: --bundle DIR"),
        (["--log-outcomes", "x", "--bundle", "absent"], "absent"),
        (["speed"], "'speed'"),
        (["host", "--rounds", "0"], "--rounds"),
        (["host", "--batch", "1,x"], "--batch"),
        (["host", "--modes", "ssd,auto"], "'auto' is no mode"),
        (["host", "--verify-ms", "nan"], "--verify-ms"),
        (["lanes"], "--bundle"),
        (["lanes", "--bundle", "absent"], "absent"),
        (["overlap", "--bundle", "absent"], "absent"),
        (["overlap", "--bundle", "absent", "--max-tokens", "1"], "--max-tokens"),
    ],
)
def test_what_cannot_be_measured_is_one_line_and_exit_code_2(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert expected in err


@pytest.mark.parametrize("kind", ["host", "lanes", "overlap"])
def test_help_of_each_kind_has_an_example(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", kind, "--help"]) == 0
    assert f"python -m runtime bench {kind}" in capsys.readouterr().out
