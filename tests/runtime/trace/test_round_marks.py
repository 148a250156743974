"""Marks of rounds on a timeline: hits, misses, and what a policy changed."""

from __future__ import annotations

from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport
from runtime.trace.rounds import RoundMarks
from runtime.trace.timeline import Timeline


def marks(*reports: RoundReport) -> list[tuple[str, dict[str, object]]]:
    timeline = Timeline()
    listen = RoundMarks(timeline)
    for report in reports:
        listen(report)
    return [(moment.label, dict(moment.facts)) for moment in timeline.moments]


def report(number: int, plan: RoundPlan, *hits: bool | None) -> RoundReport:
    rows = tuple(
        RowReport(slot, ProposalKind.HIT if hit else ProposalKind.NONE, 2, 1, hit)
        for slot, hit in enumerate(hits)
    )
    return RoundReport(number, rows, plan)


def test_each_known_outcome_is_a_hit_or_a_miss() -> None:
    plan = RoundPlan("ssd", 2, 4)
    found = marks(report(1, plan, None, None), report(2, plan, True, False))
    assert [(label, facts["row"], facts["drafts"]) for label, facts in found] == [
        ("hit", 0, "hit"),
        ("miss", 1, "none"),
    ]
    assert found[0][1]["round"] == 2


def test_a_change_of_plan_is_marked_once() -> None:
    sd, ssd = RoundPlan("sd", 3), RoundPlan("ssd", 2, 4, Fallback.JIT)
    found = marks(
        *(report(number, plan, None) for number, plan in enumerate([PLAIN, PLAIN, sd, sd, ssd]))
    )
    assert [(label, facts["mode"], facts["round"]) for label, facts in found] == [
        ("plan", "sd", 2),
        ("plan", "ssd", 4),
    ]
    assert found[1][1] == {
        "round": 4,
        "mode": "ssd",
        "drafts": 2,
        "branches": 4,
        "fallback": "jit",
        "drafter": "model",
    }
