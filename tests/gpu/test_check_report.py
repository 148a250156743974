"""What the check writes: JSON and JUnit XML that say the same, and what it reads of pytest's."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from engines.errors import DeviceError
from tests.gpu import report
from tests.gpu.machine import facts_of
from tests.gpu.report import Case, Outcome, PartReport

CASES = (
    Case("right", seconds=0.5, figures={"bytes_per_s": 4e12}),
    Case("wrong", Outcome.FAILED, "out[3] is 1\x00, expected 2 <&>", 1.0),
    Case("no time", Outcome.LEFT_OUT, "no time was left"),
    Case("no package", Outcome.SKIPPED, "needs x"),
)
PARTS = (
    report.of_cases("kernels", CASES, 3.0),
    PartReport("contract", Outcome.SKIPPED, "needs pytest"),
    PartReport("replay", Outcome.FAILED, "it took longer than 45 s", 45.0),
)


def test_cases_survive_the_way_between_processes() -> None:
    assert report.cases_from_json(report.cases_as_json(CASES)) == CASES


@pytest.mark.parametrize("text", ["", "{}x", "[1]", '[{"name": "a"}]', '[{"outcome": "odd"}]'])
def test_half_a_file_is_told_from_a_whole_one(text: str) -> None:
    """A process that dies while it writes must not pass for one that found nothing."""
    with pytest.raises(ValueError, match=r".+"):
        report.cases_from_json(text)


def test_the_json_has_facts_and_figures() -> None:
    found = json.loads(report.as_json(PARTS, {"card": "a card", "elapsed_s": 9.0}))
    assert (found["card"], found["version"]) == ("a card", 1)
    kernels = found["parts"][0]
    assert kernels["outcome"] == "failed"
    assert kernels["reason"] == "2 of 4: wrong: out[3] is 1\x00, expected 2 <&>"
    assert kernels["cases"][0]["figures"] == {"bytes_per_s": 4e12}


def test_the_xml_counts_what_the_json_has() -> None:
    """A part that ended early has a failure of its own; CI reads nothing else."""
    root = ElementTree.fromstring(report.as_junit(PARTS).encode())
    counts = {
        suite.get("name"): tuple(int(suite.get(key)) for key in ("tests", "failures", "skipped"))
        for suite in root
    }
    assert counts == {"kernels": (4, 1, 2), "contract": (1, 0, 1), "replay": (1, 1, 0)}
    assert root.find(".//failure").get("message") == "out[3] is 1 , expected 2 <&>"


def test_a_part_that_fails_beside_its_good_cases_still_fails_in_the_xml() -> None:
    part = PartReport("p", Outcome.FAILED, "it was killed", 1.0, (Case("right"),))
    root = ElementTree.fromstring(report.as_junit([part]).encode())
    assert [each.get("name") for each in root.iter("testcase")] == ["right", "p"]


def test_the_table_names_what_is_not_as_it_should_be() -> None:
    assert report.as_table(PARTS).splitlines() == [
        "failed       3.0 s  kernels",
        "          failed: wrong: out[3] is 1\x00, expected 2 <&>",
        "          left out: no time: no time was left",
        "          skipped: no package: needs x",
        "skipped      0.0 s  contract: needs pytest",
        "failed      45.0 s  replay: it took longer than 45 s",
    ]


PYTEST = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_one[cuda]" time="0.25" />
<testcase classname="tests.a" name="test_two"><failure message="1 == 2">E</failure></testcase>
<testcase classname="tests.a" name="test_three"><error message="fixture">...</error></testcase>
<testcase classname="" name="tests.b"><error message="collection failure"></error></testcase>
<testcase classname="tests.a" name="test_four"><skipped message="needs two GPUs" /></testcase>
</testsuite></testsuites>"""


def test_what_pytest_found_becomes_cases(tmp_path: Path) -> None:
    """A test that could not be set up, or collected, has failed."""
    (tmp_path / "junit.xml").write_text(PYTEST)
    assert report.cases_of_junit(tmp_path / "junit.xml") == (
        Case("tests.a::test_one[cuda]", seconds=0.25),
        Case("tests.a::test_two", Outcome.FAILED, "1 == 2"),
        Case("tests.a::test_three", Outcome.FAILED, "fixture"),
        Case("tests.b", Outcome.FAILED, "collection failure"),
        Case("tests.a::test_four", Outcome.SKIPPED, "needs two GPUs"),
    )


def test_no_report_of_pytest_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "half.xml").write_text(PYTEST[:60])
    for name in ("half.xml", "absent.xml"):
        with pytest.raises(ValueError, match=f"{name} is no JUnit report"):
            report.cases_of_junit(tmp_path / name)


class FakeSystem:
    """cuda.core and the driver's bindings of a machine with GPU 0."""

    def __init__(self, *, has_nvml: bool = True) -> None:
        release = (580, 65, 6) if has_nvml else None
        self.system = SimpleNamespace(get_kernel_mode_driver_version=lambda: release)

    def Device(self, ordinal: int) -> SimpleNamespace:  # noqa: N802
        if ordinal != 0:
            raise RuntimeError("CUDA_ERROR_INVALID_DEVICE: no such GPU")
        return SimpleNamespace(
            name="H", compute_capability=(9, 0), device_id=0, set_current=lambda: None
        )

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, 13010

    def cuDeviceTotalMem(self, _device: int) -> tuple[int, int]:  # noqa: N802
        return 0, 2**37


def test_the_facts_name_card_driver_and_versions() -> None:
    core = FakeSystem()
    facts = facts_of("cuda:0", (core, core))
    named = [facts[name] for name in ("card", "capability", "driver", "driver_cuda")]
    assert named == ["H", "9.0", "580.65.06", "13.1"]
    assert facts["memory_bytes"] == 2**37
    assert facts["versions"]["numpy"]
    core = FakeSystem(has_nvml=False)
    assert facts_of("cuda:0", (core, core))["driver"] == "unknown"


@pytest.mark.parametrize("device", ["cuda:1", "cpu", "cuda:x"])
def test_a_gpu_that_is_not_there_is_named(device: str) -> None:
    core = FakeSystem()
    with pytest.raises(DeviceError, match=f"{device} cannot be opened"):
        facts_of(device, (core, core))
