"""One mode over drawn sessions: what a loaded pair is to a bundle. And texts that keep it busy."""

from __future__ import annotations

from functools import partial

from engines.manifest import Limits
from runtime.backends.api import CallShape
from runtime.backends.drawn import DrawnDraft, DrawnTarget, Law
from runtime.bench.replay.clock import Clock
from runtime.request import Request
from runtime.round import draft_side, target_side
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.scheduler import OnRound, Scheduler, Ticket
from runtime.spec.cost.times import CallTimes, PairTimes
from runtime.spec.plan import RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker

TEXT_LEN = 1536
"""Tokens of a text. Its first round has no drafts and its last ones fewer: well under 1 % of it."""


class ReplayedPair:
    """A scheduler whose ``batch`` slots are always busy: where a text ends the next one begins."""

    def __init__(
        self,
        clock: Clock,
        plan: RoundPlan,
        times: PairTimes,
        law: Law,
        batch: int,
        on_round: OnRound,
    ) -> None:
        device, width = clock.device, max(1, plan.num_branches)
        limits = Limits(TEXT_LEN + 1, batch, max(1, plan.num_draft), width)
        chosen = rule("coupled")
        mailbox = Mailbox(device, batch, plan.num_draft)
        is_beside = plan.mode == "ssd"
        target_s = partial(_seconds, times.target_beside if is_beside else times.target)
        draft_s = partial(_seconds, times.draft_beside if is_beside else times.draft)
        target = TargetWorker(
            DrawnTarget(limits, device, width, target_s, clock.pace, law), chosen, mailbox
        )
        near, far = target_side(device.create_stream("target"), target), None
        if plan.mode != "ar":
            draft = DraftWorker(
                DrawnDraft(limits, device, width, draft_s, clock.pace),
                chosen,
                mailbox,
                num_draft=plan.num_draft,
                num_branches=plan.num_branches,
                statistics=OutcomeStatistics(plan.num_draft, width),
                fallback=plan.fallback,
            )
            far = draft_side(device.create_stream("draft"), draft)
        self._scheduler = Scheduler(
            device, plan.mode, near, far, max_batch=batch, on_round=on_round
        )
        # The first texts end one after another, and so do all that follow.
        self._tickets = [self._submit(TEXT_LEN * (row + 1) // batch) for row in range(batch)]

    def step(self) -> None:
        """One step of the scheduler."""
        self._scheduler.step()
        for row, ticket in enumerate(self._tickets):
            if ticket.done:
                self._tickets[row] = self._submit(TEXT_LEN)

    def stop(self) -> None:
        """Cancel what still runs."""
        for ticket in self._tickets:
            self._scheduler.cancel(ticket)
        while self._scheduler.step():
            pass

    def _submit(self, length: int) -> Ticket:
        request = Request([0], SamplingParams(), length, frozenset(), TEXT_LEN + 1)
        return self._scheduler.submit(request)


def _seconds(times: CallTimes, shape: CallShape) -> float:
    return times.seconds(shape.num_slots, shape.num_tokens)
