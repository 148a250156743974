"""Marks on a timeline: how each row's round began, and where the way of decoding changed."""

from __future__ import annotations

from time import perf_counter

from runtime.spec.plan import RoundPlan, RoundReport
from runtime.trace.timeline import Timeline


class RoundMarks:
    """Told of rounds (fits ``runtime.ticket.OnRound``); marks hits and misses, and each change of
    mode, K, W, fallback or drafter that a policy makes."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._plan: RoundPlan | None = None

    def __call__(self, report: RoundReport) -> None:
        now, plan = perf_counter(), report.plan
        if self._plan not in (None, plan):
            self._timeline.moment(
                "plan",
                now,
                round=report.number,
                mode=plan.mode,
                drafts=plan.num_draft,
                branches=plan.num_branches,
                fallback=plan.fallback.value,
                drafter=plan.drafter.value,
            )
        self._plan = plan
        for row in report.rows:
            if row.hit is not None:
                self._timeline.moment(
                    "hit" if row.hit else "miss",
                    now,
                    round=report.number,
                    row=row.slot,
                    drafts=row.kind.name.lower(),
                    accepted=row.accepted,
                )
