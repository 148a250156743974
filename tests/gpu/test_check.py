"""The check without a GPU: which parts run, what they may take, what is reported of them."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.gpu import check
from tests.gpu.parts import PARTS, Options, Part
from tests.gpu.report import Case, Outcome, PartReport, of_cases

FACTS = {"card": "a card", "driver": "1.2"}


def part(name: str, needs: tuple[str, ...] = (), limit_s: float = 50) -> Part:
    return Part(name, needs, limit_s, lambda _: [])


class Runner:
    """Runs a part by taking ``seconds`` of made-up time."""

    def __init__(self, seconds: float = 1.0, outcome: Outcome = Outcome.PASSED) -> None:
        self.now, self.seconds, self.outcome = 0.0, seconds, outcome
        self.budgets: dict[str, float] = {}

    def __call__(self, part: Part, options: Options) -> PartReport:
        self.budgets[part.name] = options.budget_s
        self.now += self.seconds
        return PartReport(part.name, self.outcome, "", self.seconds, (Case("a", self.outcome),))

    def clock(self) -> float:
        return self.now


def test_a_part_gets_its_limit_or_what_is_left_and_then_nothing() -> None:
    """The whole must end in time: a GPU is lent by the minute."""
    runner = Runner(seconds=60)
    parts = [part("a"), part("b", limit_s=500), part("c"), part("d")]
    found = check.run_parts(parts, Options(), runner, budget_s=150, clock=runner.clock)
    assert runner.budgets == {"a": 50, "b": 90, "c": 30}
    assert found[-1] == PartReport("d", Outcome.LEFT_OUT, "-30 s were left")


def test_a_part_without_its_packages_is_skipped_by_name() -> None:
    runner = Runner()
    parts = [part("a", ("json", "no_such_package", "no_such.package")), part("b", ("json",))]
    skipped, ran = check.run_parts(parts, Options(), runner, clock=runner.clock)
    assert skipped == PartReport("a", Outcome.SKIPPED, "needs no_such_package, no_such.package")
    assert ran.outcome is Outcome.PASSED


def test_all_limits_together_leave_no_part_without_time() -> None:
    """Were each of them to take its limit, the last would still get more than half of its own."""
    limits = [each.limit_s for each in PARTS.values()]
    assert check.BUDGET_S - sum(limits[:-1]) > limits[-1] / 2
    assert check.BUDGET_S < 240


@pytest.fixture
def on_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "facts_of", lambda _device: dict(FACTS))
    monkeypatch.setattr(check, "PARTS", {"a": part("a"), "b": part("b")})


@pytest.mark.usefixtures("on_a_card")
@pytest.mark.parametrize(("outcome", "code"), [(Outcome.PASSED, 0), (Outcome.FAILED, 1)])
def test_the_reports_are_written_and_the_exit_code_tells(
    outcome: Outcome, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "out"
    assert check.main(["--out", str(out)], Runner(outcome=outcome)) == code
    found = json.loads((out / "check.json").read_text())
    assert (found["format"], found["card"], found["driver"]) == ("ssd-gpu-check", "a card", "1.2")
    assert [each["name"] for each in found["parts"]] == ["a", "b"]
    assert len(ElementTree.parse(out / "check.xml").findall(".//testcase")) == 2
    assert capsys.readouterr().out.startswith("a card, driver 1.2\n")


@pytest.mark.usefixtures("on_a_card")
def test_single_parts_can_be_asked_for(tmp_path: Path) -> None:
    runner = Runner()
    assert check.main(["b", "--out", str(tmp_path)], runner) == 0
    assert list(runner.budgets) == ["b"]


@pytest.mark.usefixtures("on_a_card")
def test_an_unknown_part_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["typo"]) == 2
    assert capsys.readouterr().err == "error: no part 'typo'; there are a, b\n"


PROBLEMS = {
    "raises": ("raise RuntimeError('broken')", "RuntimeError: broken"),
    "exits": ("import os; os._exit(3)", "exit code 3"),
    "hangs": ("import time; time.sleep(60)", "it took longer than 2 s"),
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What runs in the place of the check's own module."""
    package = tmp_path / "tests" / "gpu"
    package.mkdir(parents=True)
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return package / "check.py"


@pytest.mark.parametrize("kind", PROBLEMS)
def test_a_process_that_leaves_no_cases_fails_its_part(kind: str, stand_in: Path) -> None:
    """A fault of the GPU may end it anywhere; the next part runs in another."""
    program, reason = PROBLEMS[kind]
    stand_in.write_text(program)
    found = check.run_apart(part("a"), Options(budget_s=2.0 if kind == "hangs" else 60.0))
    assert (found.outcome, found.reason, found.cases) == (Outcome.FAILED, reason, ())


def test_the_cases_of_a_process_come_back(stand_in: Path) -> None:
    """With what it was told, and whatever it prints."""
    stand_in.write_text(
        textwrap.dedent("""
            import json, sys
            print("noise")
            told = sys.argv[1:]
            case = {"name": " ".join(told), "outcome": "passed", "reason": "", "seconds": 2.5,
                    "figures": {"kernel_s": 1e-6}}
            open(told[told.index("--cases") + 1], "w").write(json.dumps([case]))
        """)
    )
    options = Options((Path("/b1"), Path("/b2")), "cuda:1", 33.0)
    found = check.run_apart(part("a"), options)
    [case] = found.cases
    assert found.outcome is Outcome.PASSED
    assert case.name.startswith("--part a --cases ")
    assert case.name.endswith("--device cuda:1 --budget 33.0 --bundle /b1 --bundle /b2")
    assert (case.seconds, case.figures) == (2.5, {"kernel_s": 1e-6})


def test_a_part_runs_in_this_process_when_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    own = Part("a", (), 9, lambda options: told.append(options) or [Case("x")])
    monkeypatch.setattr(check, "PARTS", {"a": own})
    cases = tmp_path / "cases.json"
    arguments = ["--part", "a", "--cases", str(cases), "--budget", "7", "--bundle", "b"]
    assert check.main(arguments) == 0
    assert told == [Options((Path("b"),), "cuda:0", 7.0)]
    assert json.loads(cases.read_text())[0]["name"] == "x"


def test_without_a_gpu_nothing_can_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.gpu import machine

    monkeypatch.setitem(sys.modules, "cuda", None)
    monkeypatch.setattr(check, "facts_of", machine.facts_of)
    assert check.main(["--out", str(tmp_path / "out")]) == 2
    assert "cuda-core" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_part_whose_every_case_was_skipped_is_skipped() -> None:
    cases = [Case("a", Outcome.SKIPPED, "no bundle"), Case("b", Outcome.SKIPPED, "no bundle")]
    assert of_cases("p", cases, 1.0).outcome is Outcome.SKIPPED
    assert of_cases("p", [*cases, Case("c")], 1.0).outcome is Outcome.PASSED
    assert of_cases("p", [*cases, Case("c", Outcome.LEFT_OUT)], 1.0).outcome is Outcome.FAILED
