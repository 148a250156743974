"""``plan`` on the command line: what it shows, and what it refuses in one line."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest

from runtime.calibrate.times import MachineTimes, Measured, Quality
from runtime.cli import plan_question
from runtime.cli.entry import main
from runtime.plan import bundle as plan_bundle
from runtime.spec.cost.laws import laws_of_acceptance
from runtime.spec.cost.times import Grid
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound, LogHeader, LogWriter
from tests.helpers.tiny_bundle import tiny_bundle

SMALL = ["--max-draft", "6", "--max-branches", "12"]
"""A search that takes little time."""
PAIR = ["plan", "--target-ms", "15", "--draft-ms", "2.2"]
ASKED = [*PAIR, "--acceptance", "0.85", *SMALL]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_text_has_the_modes_the_verdict_and_the_formulas(capsys) -> None:
    assert main([*ASKED, "--devices", "4+1"]) == 0
    out, err = capsys.readouterr()
    rows = [line.split() for line in out.splitlines()]
    assert [row[0] for row in rows if row and row[0] in ("ar", "sd", "ssd")] == [
        "ar",
        "sd",
        "ssd",
        "ssd",
    ]
    assert "devices: 4 + 1; acceptance of a drafted token: 0.85" in out
    assert "basis: a call of the target or the draft takes as long whatever its size" in out
    assert "basis: F guesses of a bonus token miss with probability F ** -1.93" in out
    assert "best: ssd with K = " in out
    assert "(--mode ssd --num-draft " in out
    assert "break-even acceptance (even over all tokens): sd 0.1" in out
    assert "The draft's own device pays for itself: " in out
    assert "round (sd) = K x draft(N, 1) + verify(N, K + 1)" in out
    assert err == ""


def test_json_says_the_same(capsys) -> None:
    found = run(capsys, *ASKED, "--devices", "4+1", "--batch", "2")
    assert found["command"].startswith("python -m runtime plan --target-ms 15")
    assert (found["batch"], found["devices"]) == (2, {"target": 4, "draft": 1})
    plain, sd, zero, jit = found["modes"]
    assert plain["tokens_per_second"] == pytest.approx(2 / 0.015)
    assert plain["itl_ms"] == pytest.approx({"mean": 15, "p50": 15, "p99": 15})
    assert (sd["mode"], zero["fallback"], jit["fallback"]) == ("sd", "zero", "jit")
    assert zero["tokens_per_second_each"] == pytest.approx(zero["tokens_per_second"] / 5)
    assert sum(zero["fan_out"]) == zero["num_branches"]
    assert found["device_pays"] is True
    assert set(found["break_even_acceptance"]) == {"sd", "ssd", "each_device"}
    fastest = max(found["modes"], key=lambda mode: mode["tokens_per_second"])
    assert found["best"] == {name: fastest[name] for name in found["best"]}
    assert found["memory"] is None


def test_limits_of_the_search_are_kept_and_told(capsys) -> None:
    found = run(capsys, *ASKED, "--max-draft", "2", "--max-branches", "3")
    assert found["searched"] == {"num_draft": 2, "num_branches": 3}
    assert max(mode["num_draft"] or 0 for mode in found["modes"]) == 2
    assert max(mode["num_branches"] or 0 for mode in found["modes"]) == 3
    assert main([*ASKED, "--max-draft", "2"]) == 0
    assert "K is the largest that was looked at (--max-draft)" in capsys.readouterr().out


def test_a_shared_device_is_slower_beside_the_other_engine(capsys) -> None:
    apart = run(capsys, *ASKED)
    shared = run(
        capsys,
        *ASKED,
        *("--devices", "1", "--beside-target-ms", "20", "--beside-draft-ms", "3"),
    )
    assert shared["device_pays"] is None
    assert not any("shared devices" in note for note in shared["basis"])
    unsaid = run(capsys, *ASKED, "--devices", "1")
    assert any("give --beside-target-ms" in note for note in unsaid["basis"])
    assert shared["modes"][1] == apart["modes"][1]
    assert shared["modes"][2]["tokens_per_second"] < apart["modes"][2]["tokens_per_second"]


def test_times_that_fall_are_remarked_on(capsys) -> None:
    found = run(capsys, *ASKED, "--target-ms", "8:20,16:10", "--draft-ms", "1:1,2:1")
    assert [note.split()[0] for note in found["basis"] if "less time" in note] == ["--target-ms"]


def test_minus_nothing_is_nothing(capsys) -> None:
    found = run(capsys, *PAIR, *SMALL, "--acceptance=-0.0", "--exchange-ms=-0")
    assert str(found["acceptance"]) == "0.0"


def test_every_round_pays_for_the_exchange(capsys) -> None:
    found = run(capsys, *ASKED, "--exchange-ms", "0.5")
    assert found["modes"][0]["round_ms"] == pytest.approx(15.5)


# --- logs ---


def write_log(path: Path, num_ranks: int = 8, accepted: int = 3) -> Path:
    mode = "ssd" if num_ranks else "sd"
    with LogWriter(path, LogHeader("demo", mode, 4, num_ranks, 6, "jit")) as log:
        for number in range(200):
            rank = number % 2 * 5 if num_ranks else None
            log.add(LoggedRound(0, ProposalKind.JIT, 4, accepted, rank, rank == 0))
    return path


def test_a_log_is_planned_by(tmp_path: Path, capsys) -> None:
    found = run(capsys, *PAIR, *SMALL, "--outcomes", str(write_log(tmp_path / "log.jsonl")))
    assert found["acceptance"] == pytest.approx(0.75, abs=0.03)
    # Half of all bonus tokens are the first candidate. The others are the sixth: too far down for
    # six branches that other counts of accepted tokens share.
    said = next(note for note in found["basis"] if "logged rounds" in note)
    assert said.startswith("200 logged rounds of ssd; 4.00 tokens a round (predicted 3.9")
    assert "hit rate 50% (predicted 5" in said
    worse = run(
        capsys, *PAIR, *SMALL, "--outcomes", str(write_log(tmp_path / "bad.jsonl", accepted=0))
    )
    assert worse["best"]["mode"] == "ar"
    assert worse["modes"][1]["tokens_per_second"] < found["modes"][1]["tokens_per_second"]


def test_a_log_without_ranks_says_what_is_assumed(tmp_path: Path, capsys) -> None:
    found = run(
        capsys, *PAIR, *SMALL, "--outcomes", str(write_log(tmp_path / "log.jsonl", num_ranks=0))
    )
    assert any("the log has no ranks" in note for note in found["basis"])


def test_a_log_in_which_nothing_was_drafted_is_no_verdict_on_the_draft(tmp_path, capsys) -> None:
    """Its acceptance would be 0, and speculation would seem not to pay."""
    path = tmp_path / "log.jsonl"
    with LogWriter(path, LogHeader("demo", "ssd", 4, 8, 6, "zero")) as log:
        log.add(LoggedRound(0, ProposalKind.NONE, 0, 0, 2, True))
    assert main([*PAIR, *SMALL, "--outcomes", str(path)]) == 2
    assert "the draft model drafted" in capsys.readouterr().err


# --- bundles ---


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Two cores and scripted measurements: a second core makes the target faster."""

    def grid(slow: float) -> Grid:
        return Grid((1, 3), (1, 5), ((0.010 * slow, 0.012 * slow), (0.013 * slow, 0.020 * slow)))

    draft = Grid((1, 3), (1, 6), ((0.001, 0.002), (0.002, 0.004)))
    scripted = MachineTimes(
        Measured(grid(1.0), draft), Measured(grid(1.3), draft), Quality(0.01, 0.01)
    )
    asked = []

    def measure(_bundle, num_draft, num_branches, batch):
        asked.append((num_draft, num_branches, batch))
        return scripted

    monkeypatch.setattr(plan_bundle, "measure", measure)
    monkeypatch.setattr(plan_bundle, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(plan_bundle, "cpu_quota", lambda: None)
    monkeypatch.setattr(plan_bundle, "bundle_laws", lambda *_: laws_of_acceptance(0.7))
    return asked


def test_a_bundle_is_measured_up_to_its_limits(machine, capsys) -> None:
    path = str(tiny_bundle().path)
    found = run(capsys, "plan", "--bundle", path, "--batch", "3", "--quiet")
    assert machine == [(4, 6, 3)]
    assert found["searched"] == {"num_draft": 4, "num_branches": 6}
    assert found["modes"][0]["tokens_per_second"] == pytest.approx(3 / (0.013 + 0.0003))
    # Both engines on one machine: no device is the draft's alone.
    assert (found["devices"], found["device_pays"]) == ({"target": 1, "draft": 0}, None)
    assert found["acceptance"] == pytest.approx(0.7)
    assert any("measured on this machine" in note for note in found["basis"])


def test_memory_is_listed_by_engine(machine, capsys) -> None:
    path = str(tiny_bundle().path)
    assert main(["plan", "--bundle", path, "--memory", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "memory on cpu for 1 at once: " in out
    assert [line.split()[:2] for line in out.splitlines() if "caches" in line] == [
        ["target", "caches"],
        ["draft", "caches"],
    ]
    found = run(capsys, *ASKED, "--bundle", path, "--memory", "cuda:0,cuda:1", "--batch", "2")
    devices = {each["device"]: each["total_bytes"] for each in found["memory"]["devices"]}
    assert {"cuda:0", "cuda:1"} <= set(devices)
    assert found["memory"]["num_slots"] == 2
    assert machine == [(4, 6, 1)]  # given step times are not measured


@pytest.mark.usefixtures("machine")
def test_a_busy_machine_is_not_planned_by(monkeypatch, capsys) -> None:
    target = Grid((1,), (1,), ((0.010,),))
    busy = MachineTimes(Measured(target, target), None, Quality(0.9, 0.9))
    monkeypatch.setattr(plan_bundle, "measure", lambda *_: busy)
    assert main(["plan", "--bundle", str(tiny_bundle().path), "--quiet"]) == 2
    assert "too busy to measure step times" in capsys.readouterr().err


def test_one_core_is_not_planned_by(machine, monkeypatch, capsys) -> None:
    monkeypatch.setattr(plan_bundle, "available_cores", lambda: (0,))
    assert main(["plan", "--bundle", str(tiny_bundle().path), "--quiet"]) == 2
    assert "one core cannot run two engines" in capsys.readouterr().err
    assert machine == []


def test_a_bundle_without_a_draft_is_planned_by_given_times(capsys) -> None:
    """Its limits are 0: nothing at all would be looked at."""
    found = run(capsys, *ASKED[:7], "--bundle", str(tiny_bundle(num_draft=0, max_branches=0).path))
    assert found["searched"] == {"num_draft": 16, "num_branches": 32}


def test_a_wide_bundle_has_candidates_for_all_its_branches(monkeypatch, capsys) -> None:
    """What is looked at without a bundle is no limit of a bundle that holds more."""
    asked = []

    def laws(acceptance, exponent, num_ranks):
        asked.append(num_ranks)
        return laws_of_acceptance(acceptance, exponent, num_ranks)

    monkeypatch.setattr(plan_question, "MOST_BRANCHES", 3)
    monkeypatch.setattr(plan_question, "laws_of_acceptance", laws)
    run(capsys, *ASKED[:7], "--bundle", str(tiny_bundle().path))
    assert asked == [6]


@pytest.mark.parametrize("limit", [("--max-draft", "5"), ("--max-branches", "7")])
def test_a_bundle_is_not_measured_beyond_its_limits(machine, limit, capsys) -> None:
    assert main(["plan", "--bundle", str(tiny_bundle().path), *limit]) == 2
    assert f"{' '.join(limit)} is beyond the " in capsys.readouterr().err
    assert machine == []


# --- refusals ---


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan"], "give step times with --target-ms and --draft-ms, or a --bundle"),
        (["plan", "--target-ms", "15", "--acceptance", "0.5"], "give step times with"),
        (PAIR, "give --acceptance X, --outcomes FILE, or a --bundle"),
        ([*ASKED, "--outcomes", "log"], "--acceptance and --outcomes both say"),
        ([*PAIR, "--outcomes", "log", "--rank-exponent", "1"], "goes with --acceptance"),
        ([*ASKED, "--memory"], "--memory is read from a bundle's manifests"),
        (["plan", "--bundle", "b", "--exchange-ms", "1"], "go with --target-ms and --draft-ms"),
        ([*ASKED, "--plot", "plan.pdf"], "is neither .png nor .svg"),
        ([*PAIR, "--acceptance", "1.5"], "'1.5' is no share from 0 to 1"),
        ([*PAIR, "--acceptance", "nan"], "'nan' is no share from 0 to 1"),
        ([*ASKED, "--rank-exponent", "0"], "is no exponent above 0"),
        ([*ASKED, "--exchange-ms", "-1"], "is no time from 0 on"),
        ([*ASKED, "--devices", "0+1"], "is no number of devices such as 4+1 or 1"),
        ([*ASKED, "--devices", "4+1+1"], "is no number of devices"),
        ([*ASKED, "--batch", "0"], "'0' is not a whole number from 1 to 65536"),
        ([*ASKED, "--batch", "9" * 500], "is not a whole number from 1 to 65536"),
        ([*ASKED, "--batch", "\u0663"], "is not a whole number"),
        ([*ASKED, "--max-draft", "65"], "'65' is not a whole number from 1 to 64"),
        ([*ASKED, "--max-branches", "10000000000"], "is not a whole number from 1 to 1024"),
        (["plan", "--target-ms", "8:x", "--draft-ms", "1"], "'x' is no time from 1e-06 to"),
        ([*PAIR, "--outcomes", "none.jsonl"], "cannot read outcomes from none.jsonl"),
        (["plan", "--bundle", "none"], "no bundle at none"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(argv, message, capsys) -> None:
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


def test_a_batch_beyond_the_bundle_is_refused(machine, capsys) -> None:
    assert main(["plan", "--bundle", str(tiny_bundle().path), "--batch", "9"]) == 2
    assert "--batch 9 is beyond the 3" in capsys.readouterr().err
    assert machine == []


def test_a_missing_plotting_package_is_named_before_the_work(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main([*ASKED, "--plot", str(tmp_path / "plan.svg")]) == 2
    assert "ssd-trt[plot]" in capsys.readouterr().err


def test_a_plot_that_fails_leaves_the_older_one(tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.png"
    path.write_text("older")

    def full(self: Path, _data: bytes) -> int:
        self.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    assert main([*ASKED, "--plot", str(path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "No space left on device" in err
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_a_plot_is_written(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    assert main([*ASKED, "--plot", str(tmp_path / "plan.svg")]) == 0
    assert (tmp_path / "plan.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert "best: ssd" in capsys.readouterr().out
