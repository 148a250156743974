"""What a check found: cases in parts, as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

FORMAT, VERSION = "ssd-gpu-check", 1


class Outcome(StrEnum):
    """How a case or a part ended. LEFT_OUT: there was no time for it."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    LEFT_OUT = "left out"


@dataclass(frozen=True, slots=True)
class Case:
    """One thing that was checked.

    reason   why it failed, was skipped or left out; empty where it passed
    figures  what was measured, by name with its unit: ``kernel_s``, ``bytes_per_s``
    """

    name: str
    outcome: Outcome = Outcome.PASSED
    reason: str = ""
    seconds: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartReport:
    """The cases of one part, and how it ended as a whole: it may fail beside its cases."""

    name: str
    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    cases: tuple[Case, ...] = ()

    @property
    def is_good(self) -> bool:
        return self.outcome in (Outcome.PASSED, Outcome.SKIPPED)


def of_cases(name: str, cases: Sequence[Case], seconds: float) -> PartReport:
    """The report of a part that ran to its end."""
    bad = [case for case in cases if case.outcome in (Outcome.FAILED, Outcome.LEFT_OUT)]
    if bad:
        reason = f"{len(bad)} of {len(cases)}: {bad[0].name}: {bad[0].reason}"
        return PartReport(name, Outcome.FAILED, reason, seconds, tuple(cases))
    if cases and all(case.outcome is Outcome.SKIPPED for case in cases):
        return PartReport(name, Outcome.SKIPPED, cases[0].reason, seconds, tuple(cases))
    return PartReport(name, Outcome.PASSED, "", seconds, tuple(cases))


def cases_as_json(cases: Sequence[Case]) -> str:
    return json.dumps([asdict(case) for case in cases])


def cases_from_json(text: str) -> tuple[Case, ...]:
    """Raises ValueError on what `cases_as_json` did not write."""
    try:
        return tuple(
            Case(**{**each, "outcome": Outcome(each["outcome"])}) for each in json.loads(text)
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"no cases: {error}") from None


def as_json(parts: Sequence[PartReport], facts: Mapping[str, Any]) -> str:
    """The whole check, after the facts of the machine it ran on."""
    found = {"format": FORMAT, "version": VERSION, **facts, "parts": [asdict(p) for p in parts]}
    return json.dumps(found, indent=1) + "\n"


def as_junit(parts: Sequence[PartReport]) -> str:
    """One suite a part. A part that ended early, or without cases, has a case of its own name."""
    root = ElementTree.Element("testsuites", name=FORMAT)
    for part in parts:
        cases = list(part.cases)
        failed = any(case.outcome is Outcome.FAILED for case in cases)
        if not cases or (part.outcome is Outcome.FAILED and not failed):
            cases.append(Case(part.name, part.outcome, part.reason, part.seconds))
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=part.name,
            tests=str(len(cases)),
            failures=str(sum(each.outcome is Outcome.FAILED for each in cases)),
            skipped=str(sum(each.outcome in _NOT_RUN for each in cases)),
            time=f"{part.seconds:.3f}",
        )
        for case in cases:
            element = ElementTree.SubElement(
                suite, "testcase", classname=part.name, name=case.name, time=f"{case.seconds:.3f}"
            )
            if case.outcome is not Outcome.PASSED:
                tag = "failure" if case.outcome is Outcome.FAILED else "skipped"
                ElementTree.SubElement(element, tag, message=_printable(case.reason))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def cases_of_junit(path: Path) -> tuple[Case, ...]:
    """The test cases in a file that pytest wrote; what failed in its set-up or tear-down too.

    Raises ValueError on a file that is none.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError) as error:
        raise ValueError(f"{path.name} is no JUnit report: {error}") from None
    return tuple(map(_case_of, root.iter("testcase")))


def as_table(parts: Sequence[PartReport]) -> str:
    """A line a part, and one for each case that is not as it should be."""
    lines = []
    for part in parts:
        reason = f": {part.reason}" if part.reason and not part.cases else ""
        lines.append(f"{part.outcome.value:8}  {part.seconds:6.1f} s  {part.name}{reason}")
        lines += [
            f"          {case.outcome.value}: {case.name}: {case.reason}"
            for case in part.cases
            if case.outcome is not Outcome.PASSED
        ]
    return "\n".join(lines)


_NOT_RUN = (Outcome.SKIPPED, Outcome.LEFT_OUT)


def _case_of(element: ElementTree.Element) -> Case:
    name = "::".join(filter(None, (element.get("classname"), element.get("name"))))
    seconds = float(element.get("time", 0))
    for tag, outcome in (("failure", Outcome.FAILED), ("error", Outcome.FAILED)):
        if (found := element.find(tag)) is not None:
            return Case(name, outcome, found.get("message", "") or tag, seconds)
    if (found := element.find("skipped")) is not None:
        return Case(name, Outcome.SKIPPED, found.get("message", ""), seconds)
    return Case(name, seconds=seconds)


def _printable(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(each if each.isprintable() else " " for each in text)
