"""The real runtime under a policy, over engines that take prescribed virtual time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from engines.manifest import Limits
from runtime.backends.api import CallShape
from runtime.backends.drawn import DrawnDraft, DrawnTarget
from runtime.device.virtual import VirtualDevice
from runtime.request import Request
from runtime.round import draft_side, target_side
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from runtime.spec.cost import CallTimes, PairTimes
from runtime.spec.plan import Policy, RoundReport
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import draft as draft_module
from runtime.workers import target as target_module
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker

TEXT_LEN = 2500


class Outcomes:
    """A law that changes with the text: ``accept(token)`` and ``hit(token)`` are probabilities at
    that many emitted tokens, drawn evenly (the same share of every few rounds)."""

    def __init__(self, accept: Callable[[int], float], hit: Callable[[int], float]) -> None:
        self.accept, self.hit = accept, hit
        self.num_tokens = 0
        self._dust = [0.0, 0.0]

    def draw(self, num_drafted: int, *, ahead: bool) -> tuple[int, int | None]:  # noqa: ARG002
        accepted = 0
        while accepted < num_drafted and self._happens(0, self.accept(self.num_tokens)):
            accepted += 1
        self.num_tokens += accepted + 1
        return accepted, 0 if self._happens(1, self.hit(self.num_tokens)) else None

    def _happens(self, which: int, probability: float) -> bool:
        self._dust[which] += probability
        happens = self._dust[which] >= 1.0
        self._dust[which] -= happens
        return happens


class VirtualPair:
    """One row of text. ``reports`` are what the policy was told; ``decided_s`` when."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        policy: Policy,
        times: PairTimes,
        law: Outcomes,
        *,
        num_draft: int,
        num_branches: int,
    ) -> None:
        device = VirtualDevice()
        self.clock = device.clock
        for module in (target_module, draft_module):
            monkeypatch.setattr(module, "perf_counter", lambda: self.clock.now_s)
        limits = Limits(TEXT_LEN + 1, 1, num_draft, num_branches)
        mailbox, chosen = Mailbox(device, 1, num_draft), rule("coupled")
        call = partial(_seconds, times.target), partial(_seconds, times.draft)
        target = TargetWorker(
            DrawnTarget(limits, device, num_branches, call[0], self._pace, law), chosen, mailbox
        )
        draft = DraftWorker(
            DrawnDraft(limits, device, num_branches, call[1], self._pace),
            chosen,
            mailbox,
            num_draft=num_draft,
            num_branches=num_branches,
            statistics=OutcomeStatistics(num_draft, num_branches),
        )
        self.reports: list[RoundReport] = []
        self.decided_s: list[float] = []
        self._scheduler = Scheduler(
            device,
            "auto",
            target_side(device.create_stream("target"), target),
            draft_side(device.create_stream("draft"), draft),
            max_batch=1,
            policy=policy,
            on_round=self._note,
        )
        self._device = device

    def run(self, num_tokens: int = TEXT_LEN) -> float:
        """Decode one text; the virtual seconds it took."""
        began = self.clock.host_s
        request = Request([0], SamplingParams(), num_tokens, frozenset(), TEXT_LEN + 1)
        self._scheduler.run([request])
        assert len(request.generated) == num_tokens
        self._device.close()
        return self.clock.host_s - began

    @property
    def modes(self) -> list[str]:
        return [report.plan.mode for report in self.reports]

    def _note(self, report: RoundReport) -> None:
        self.reports.append(report)
        self.decided_s.append(self.clock.host_s)

    def _pace(self, _began: float, seconds: float) -> float:
        self.clock.spend(seconds)
        return 0.0


def _seconds(times: CallTimes, shape: CallShape) -> float:
    return times.seconds(shape.num_slots, shape.num_tokens)
