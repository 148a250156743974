"""``python -m runtime bench``: reports, JSON and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli.entry import main
from runtime.device.cores import available_cores
from tests.helpers.tiny_bundle import tiny_bundle

HEADER = {"kind", "command", "machine", "other_cores", "versions", "figures", "formulas"}
two_cores = pytest.mark.skipif(len(available_cores()) < 2, reason="ssd needs two cores")


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main(["bench", *arguments, "--json"]) == 0
    out, _ = capsys.readouterr()
    assert out.count("\n") == 1
    record = json.loads(out)
    assert set(record) == HEADER
    assert record["kind"] == arguments[0]
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "KIND"),
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
