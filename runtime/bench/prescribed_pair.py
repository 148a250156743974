"""A pair shaped like the default one whose engines cost next to nothing, under a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.prescribed import PrescribedSession
from runtime.device.api import Device
from runtime.device.cores import available_cores, split_cores
from runtime.request import Request
from runtime.round import draft_side, target_side
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler, Ticket
from runtime.spec.statistics import OutcomeStatistics
from runtime.stats import Stats
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker

VOCAB, DRAFT_VOCAB = 49152, 8192
MAX_LEN = 512
RANKS = (0.416, 0.125, 0.062, 0.037, 0.025, 0.018, 0.015, 0.012)
"""How often the default pair's text has the draft's first, second, ... choice, on held-out text;
what is left over lies beyond all candidates."""


class PrescribedPair:
    """One mode's scheduler over prescribed sessions. The device is the caller's to close."""

    def __init__(
        self,
        device: Device,
        mode: str,
        *,
        batch: int,
        num_draft: int,
        num_branches: int,
        verify_s: float = 0.0,
    ) -> None:
        """A call of the target sleeps ``verify_s`` seconds, one of the draft none."""
        limits = Limits(MAX_LEN, batch, num_draft, num_branches)
        random = np.random.default_rng(20260303)
        order = random.permutation(DRAFT_VOCAB)  # the draft's ids by rank
        logits = np.empty(DRAFT_VOCAB, np.float32)
        logits[order] = np.linspace(0, -20, DRAFT_VOCAB)
        vocab_map = np.sort(random.permutation(VOCAB)[:DRAFT_VOCAB]).astype(np.int64)
        ranks = _draw_ranks(random, MAX_LEN)
        cores = available_cores()
        split = split_cores(cores)
        chosen = rule("coupled")
        mailbox = Mailbox(device, batch, num_draft)
        self.target_session = PrescribedSession(
            TARGET,
            np.zeros(VOCAB, np.float32),
            limits,
            device,
            text=vocab_map[order[ranks]],
            call_s=verify_s,
        )
        self.target = TargetWorker(self.target_session, chosen, mailbox)
        pinned = split.target_cores if mode == "ssd" else cores
        near = target_side(device.create_stream("target", cores=pinned), self.target)
        far = None
        if mode != "ar":
            self.draft = DraftWorker(
                PrescribedSession(
                    DRAFT, logits, limits, device, vocab_size=VOCAB, vocab_map=vocab_map
                ),
                chosen,
                mailbox,
                num_draft=num_draft,
                num_branches=num_branches,
                statistics=OutcomeStatistics(num_draft, num_branches, RANKS),
            )
            pinned = split.draft_cores if mode == "ssd" else cores
            far = draft_side(device.create_stream("draft", cores=pinned), self.draft)
        self.scheduler = Scheduler(device, mode, near, far, max_batch=batch)


def _draw_ranks(random: np.random.Generator, num: int) -> np.ndarray:
    """Ranks of a text's tokens, int64 [num], by RANKS; the rest is spread thin."""
    rest = np.full(DRAFT_VOCAB - len(RANKS), 1.0)
    law = np.concatenate([RANKS, rest * (1 - sum(RANKS)) / rest.sum()])
    return random.choice(DRAFT_VOCAB, num, p=law / law.sum())


@dataclass(frozen=True, slots=True)
class Share:
    """Counts of the texts that ended in one stretch of rounds."""

    num_rounds: int
    num_emitted: int
    num_hits: int
    num_looked_up: int

    @property
    def acceptance_length(self) -> float | None:
        return self.num_emitted / self.num_rounds if self.num_rounds else None

    @property
    def hit_rate(self) -> float | None:
        return self.num_hits / self.num_looked_up if self.num_looked_up else None


class SteadyTexts:
    """Keeps every slot of a scheduler busy: where a text ends the next one begins."""

    def __init__(self, scheduler: Scheduler, batch: int) -> None:
        self._scheduler = scheduler
        self._num_texts = 0
        self._ended: list[Stats] = []
        self._tickets = [self._submit() for _ in range(batch)]

    def step(self) -> None:
        """One step of the scheduler."""
        self._scheduler.step()
        for place, ticket in enumerate(self._tickets):
            if ticket.done:
                self._ended.append(ticket.stats)
                self._tickets[place] = self._submit()

    def take_share(self) -> Share:
        """Counts of the texts that ended since this was last asked."""
        ended, self._ended = self._ended, []
        return Share(
            num_rounds=sum(each.num_rounds for each in ended),
            num_emitted=sum(each.num_emitted for each in ended),
            num_hits=sum(each.num_hits or 0 for each in ended),
            num_looked_up=sum(
                each.num_rounds_after_hit + each.num_rounds_after_miss
                for each in ended
                if each.num_hits is not None
            ),
        )

    def stop(self) -> None:
        """Cancel what still runs."""
        for ticket in self._tickets:
            self._scheduler.cancel(ticket)
        while self._scheduler.step():
            pass

    def _submit(self) -> Ticket:
        """Prompts of different lengths: rows are at different places of the text, and their ends
        do not coincide."""
        self._num_texts += 1
        prompt = [0] * (1 + 37 * self._num_texts % 101)
        length = 150 + 29 * self._num_texts % 211
        return self._scheduler.submit(
            Request(prompt, SamplingParams(), length, frozenset(), MAX_LEN)
        )
