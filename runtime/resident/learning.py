"""Statistics between host and device: what to prepare goes there, what came of it comes back."""

from __future__ import annotations

from collections import deque

import numpy as np

from plugins.lookup.reference import RANK, WAS_PREPARED
from runtime.resident.exchange import Exchange
from runtime.resident.kernels import Work
from runtime.resident.slabs import Slab
from runtime.spec.fallback import ProposalKind
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.mailbox import Kind

_NUM_KEPT = 8
"""Rounds whose predictions are kept until their reports come."""


class Learning:
    """Work of the draft's stream. Rounds are numbered by their verdicts."""

    def __init__(
        self, statistics: OutcomeStatistics, mailbox: Exchange, work: Work, fan_out: Slab
    ) -> None:
        """``fan_out`` is what ``plugins.fork`` reads."""
        self._statistics = statistics
        self._mailbox = mailbox
        self._work = work
        self._fan_out = fan_out
        self._on_device: np.ndarray | None = None
        self._predicted: deque[tuple[int, list[float]]] = deque(maxlen=_NUM_KEPT)

    def plan_forks(self, number: int, num_branches: int) -> None:
        """Tell the device how many outcomes to prepare after each accepted count, if it is news;
        round ``number`` will show how good that was."""
        width = self._mailbox.max_draft + 1
        table = np.zeros((width, width), np.int32)
        rates = []
        for drafted in range(min(width, self._statistics.num_draft + 1)):
            plan = self._statistics.plan(_source(drafted), drafted, num_branches)
            table[drafted, : len(plan.counts)] = plan.counts
            rates.append(plan.hit_rate)
        self._predicted.append((number, rates))
        if self._on_device is None or not np.array_equal(table, self._on_device):
            self._work.put([(self._fan_out["fan_out"], table)])
            self._on_device = table

    def learn(self) -> None:
        """Let the statistics learn from the reports that have come."""
        for number, rows in self._mailbox.unlearnt():
            rates = next((rates for known, rates in self._predicted if known == number), None)
            judged = [
                cells
                for cells in rows
                if cells[mail.KIND] != Kind.SKIP and cells[WAS_PREPARED] >= 0
            ]
            if rates is not None and judged:
                for cells in judged[:-1]:
                    self._observe(cells, rates, ends_round=False)
                self._observe(judged[-1], rates, ends_round=True)

    def _observe(self, cells: list[int], rates: list[float], *, ends_round: bool) -> None:
        drafted = cells[mail.COUNT]
        self._statistics.observe(
            kind=_source(drafted),
            num_drafted=drafted,
            accepted=cells[mail.ACCEPTED],
            rank=cells[RANK] if cells[RANK] >= 0 else None,
            hit=bool(cells[WAS_PREPARED]),
            predicted=rates[drafted],
            ends_round=ends_round,
        )
        figures = self._mailbox.draft_figures.array
        figures[mail.PREDICTED_HITS] += rates[drafted]
        figures[mail.NUM_PREDICTED] += 1


def _source(num_drafted: int) -> ProposalKind:
    return ProposalKind.HIT if num_drafted else ProposalKind.NONE
