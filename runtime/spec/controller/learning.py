"""What reports teach: acceptance by place, ranks, copies, the pace of rounds."""

from __future__ import annotations

from runtime.spec.controller.choices import as_if_uncut, may_wait
from runtime.spec.controller.forecasts import Forecasts
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport, RowReport


class Learning:
    """Passes reports on to those that forecast by them."""

    def __init__(self, forecasts: Forecasts, *, is_cut: bool) -> None:
        """``is_cut``: proposals may end before K."""
        self._forecasts = forecasts
        self._is_cut = is_cut
        self._rows: dict[int, tuple[RowReport, RoundPlan]] = {}  # each slot's last one
        self._slots: set[int] = set()  # of the last report
        self._since_verdict = 0  # rounds that showed nothing of the draft

    def count_texts(self, report: RoundReport) -> bool:
        """How many there are: rows that missed may sit the next round out under jit, and are not in
        its report. Whether that is another number than before."""
        slots = {row.slot for row in report.rows}
        batch = len(slots | self._slots if may_wait(report.plan) else slots)
        self._slots = slots
        if batch == self._forecasts.batch:
            return False
        self._forecasts.set_batch(batch)
        return True

    def learn(self, report: RoundReport) -> bool:
        """Whether the round showed something of the draft."""
        forecasts = self._forecasts
        forecasts.pace.see(report, forecasts.batch, is_cut=self._is_cut)
        for row in report.rows:
            for looked in row.looked:
                forecasts.copies.see(looked)
        is_verdict = report.plan.mode != "ar" and self._judge(report)
        self._since_verdict = 0 if is_verdict else self._since_verdict + 1
        return is_verdict

    def fade(self) -> None:
        """What was seen lately is no longer recent, where since then nothing was."""
        self._forecasts.laws.fade(self._since_verdict)
        self._since_verdict = 0

    def _judge(self, report: RoundReport) -> bool:
        laws, is_verdict = self._forecasts.laws, False
        for row in report.rows:
            before, plan_before = self._rows.get(row.slot, (None, PLAIN))
            self._rows[row.slot] = row, report.plan
            if row.is_behind:
                continue
            kind, num_drafted = row.kind, row.num_drafted
            if self._is_cut and report.plan.drafter is not Drafter.LOOKUP:
                kind, num_drafted = as_if_uncut(row, report.plan, plan_before)
            is_copied = kind is ProposalKind.LOOKUP
            is_verdict |= (num_drafted > 0 and not is_copied) or row.hit is not None
            laws.see(kind, num_drafted, row.accepted)
            if before is None or row.hit is None:
                continue
            all_accepted = before.accepted == before.num_drafted
            laws.see_rank(before.kind, row.rank, all_accepted=all_accepted)
            if not row.hit and plan_before.fallback is Fallback.LOOKUP:
                laws.see_copy(is_found=is_copied)
        return is_verdict
