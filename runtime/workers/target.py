"""The target's side: feed prompts, verify proposals, write outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from engines.errors import BackendError
from runtime.backends.api import CallShape, Session, Step
from runtime.kv.layout import SlotLayout
from runtime.sampling.api import Rule
from runtime.sampling.params import SamplingParams
from runtime.spec.outcome import Outcome
from runtime.workers.calls import fill_trunk
from runtime.workers.mailbox import Mailbox
from runtime.workers.prefill import prefill


@dataclass(slots=True)
class TargetRow:
    """One row's text as the target knows it.

    ``length`` counts the text's tokens, the last of which (``pending``) has no cache row yet.
    Written by ``TargetWorker`` alone.
    """

    params: SamplingParams
    length: int
    pending: int
    active: bool = True


class TargetWorker:
    """Verification of a batch: row i of the batch is slot i.

    All methods but the constructor run as work on the target's stream.
    """

    def __init__(
        self, session: Session, rule: Rule, mailbox: Mailbox, *, min_tokens: int = 1
    ) -> None:
        """``min_tokens`` 2 pads one-token calls, for an engine whose one-token calls round
        differently (``runtime.workers.probe``)."""
        self.session = session
        self.rule = rule
        self.mailbox = mailbox
        self.layout = SlotLayout(session.manifest.kv, 0)
        self.min_tokens = min_tokens
        self.rows: list[TargetRow] = []
        self.busy_s = 0.0

    def start(self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> None:
        """Begin a batch: all tokens of a prompt but the last go into the cache."""
        self.session.reset_rows()
        self.rows = []
        for slot, (prompt, law) in enumerate(zip(prompts, params, strict=True)):
            prefill(self.session, self.layout, slot, prompt[:-1])
            self.rows.append(TargetRow(law, len(prompt), prompt[-1]))

    def retire(self, row: int) -> None:
        """The row's text has ended; it goes on as a dummy whose outcomes nobody reads."""
        parked = self.rows[row]
        parked.active, parked.length, parked.pending = False, 1, 0

    def verify(self) -> None:
        """Judge the mailbox's proposals, one call for all rows; write the outcomes."""
        started = perf_counter()
        drafts = [
            self.mailbox.proposal(index).tokens if row.active else ()
            for index, row in enumerate(self.rows)
        ]
        width = max(self.min_tokens, 1 + max(map(len, drafts)))
        self.session.bind_rows(
            self.layout.rows_for(max(row.length for row in self.rows) - 1 + width)
        )
        step = self.session.prepare(CallShape(0, len(self.rows), width, width))
        for index, row in enumerate(self.rows):
            fill_trunk(step, index, self.layout, row.length - 1, (row.pending, *drafts[index]))
            step.logit_rows[index] = range(width)
            step.num_draft[index] = len(drafts[index])
        step.run()
        for index, row in enumerate(self.rows):
            if row.active:
                self._judge(step, index, row, drafts[index])
        self.busy_s += perf_counter() - started

    def _judge(self, step: Step, index: int, row: TargetRow, drafts: tuple[int, ...]) -> None:
        if row.params.is_greedy:
            outcome = Outcome(int(step.accepted[index]), int(step.next[index]))
            _require_finite(step.logits[index, outcome.accepted, outcome.bonus])
        else:
            verdict = self.rule.verify(
                step.logits[index], self.mailbox.proposal(index), row.params, row.length
            )
            outcome = Outcome(verdict.accepted, verdict.bonus)
        self.mailbox.decide(index, drafts, outcome)
        row.length += outcome.accepted + 1
        row.pending = outcome.bonus


def _require_finite(logit: np.float32) -> None:
    """Of the chosen token alone: a NaN on the way makes every logit NaN."""
    if not np.isfinite(logit):
        raise BackendError(
            f"the target gives {logit} as its largest logit, so its weights are damaged; "
            "check the bundle: python -m export inspect BUNDLE"
        )
