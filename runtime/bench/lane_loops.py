"""Each side of a pair by itself, round after round, with messages of the other side made up."""

from __future__ import annotations

from threading import Event
from time import perf_counter

import numpy as np

from runtime.backends.api import KeepingSession
from runtime.device.api import Device
from runtime.kv.slots import SlotPool, SlotRef
from runtime.sampling.api import Rule, rule
from runtime.sampling.noise import NoiseCache
from runtime.sampling.params import SamplingParams
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers import mailbox as mail
from runtime.workers.draft import DraftWorker
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind, Mailbox
from runtime.workers.prefill import num_chunks
from runtime.workers.target import TargetWorker

PROMPT_LEN = 192
ROUNDS_A_TEXT = 32
"""A text begins anew after so many rounds, so that all rounds meet the same lengths."""
NUM_IDS = 256
"""Token ids that every vocabulary has."""


class _Texts:
    """Leases and entries of the made-up texts, one after the other in slot 0."""

    def __init__(self, max_len: int, num_draft: int) -> None:
        room = max_len - ROUNDS_A_TEXT * (num_draft + 1) - 1
        length = max(1, min(PROMPT_LEN, room))
        prompt = np.random.default_rng(20260303).integers(0, NUM_IDS, length).tolist()
        self.entry = Entry(prompt, SamplingParams(), max_len)
        # A short cache holds fewer rounds of a text.
        self.num_rounds = max(1, min(ROUNDS_A_TEXT, (max_len - length - 1) // (num_draft + 1)))
        self.num_chunks = num_chunks(length - 1)
        self.left = 0
        self._pool = SlotPool(1)
        self.slot: SlotRef | None = None

    def next_slot(self) -> tuple[SlotRef | None, SlotRef]:
        """The old lease, if there is one, and the next."""
        old = self.slot
        if old is not None:
            self._pool.release(old)
        self.slot = self._pool.lease()
        self.left = self.num_rounds
        return old, self.slot


class TargetLoop:
    """Verifies K made-up drafts a round. All methods run on the target's stream."""

    def __init__(self, session: KeepingSession, device: Device, num_draft: int) -> None:
        limits = session.manifest.limits
        self._mailbox = Mailbox(device, 1, num_draft)
        self._worker = TargetWorker(session, _rule(session), self._mailbox)
        self._texts = _Texts(limits.max_len, num_draft)
        self._drafts = list(range(1, num_draft + 1))

    def rounds(self, num: int) -> list[float]:
        """Seconds of each of ``num`` verifications."""
        taken = []
        for _ in range(num):
            if self._texts.left == 0:
                self._begin()
            self._texts.left -= 1
            assert self._texts.slot is not None
            generation = self._texts.slot.generation
            self._mailbox.propose(0, generation, Kind.HIT, self._drafts)
            started = perf_counter()
            self._worker.verify()
            taken.append(perf_counter() - started)
        return taken

    def _begin(self) -> None:
        old, slot = self._texts.next_slot()
        if old is not None:
            self._worker.retire(old)
        self._worker.admit(slot, self._texts.entry)
        for _ in range(self._texts.num_chunks):
            self._worker.feed(slot)


class DraftLoop:
    """Adopts, commits and prepares; each outcome is one that was prepared, so every round hits.
    All methods run on the draft's stream."""

    def __init__(
        self, session: KeepingSession, device: Device, num_draft: int, num_branches: int
    ) -> None:
        limits = session.manifest.limits
        self._mailbox = Mailbox(device, 1, num_draft)
        self._statistics = OutcomeStatistics(num_draft, num_branches)
        self._num_branches = num_branches
        self._worker = DraftWorker(
            session,
            _rule(session),
            self._mailbox,
            num_draft=num_draft,
            num_branches=num_branches,
            statistics=self._statistics,
        )
        self._texts = _Texts(limits.max_len, num_draft)

    @property
    def hit_rate(self) -> float:
        """Share of outcomes that had been prepared: 1, or what was measured is something else."""
        return self._statistics.hit_rate

    def rounds_until(self, stop: Event) -> list[float]:
        """Seconds of each round until ``stop`` is set; one at least."""
        taken = []
        while True:
            if self._texts.left == 0:
                self._begin()
            self._texts.left -= 1
            started = perf_counter()
            self._worker.prepare()
            self._decide()
            self._worker.adopt()
            self._worker.commit()
            taken.append(perf_counter() - started)
            if stop.is_set():
                return taken

    def _decide(self) -> None:
        """Make up the target's message: the longest accepted prefix that was prepared for, and
        the likeliest token after it."""
        row = self._worker.rows[0]
        assert row is not None
        drafted = len(row.proposal)
        counts = self._statistics.plan(row.source, drafted, self._num_branches).counts
        accepted = max(k for k in range(drafted + 1) if counts[k] and row.candidates[k])
        bonus = row.candidates[accepted][0]
        generation = row.slot.generation
        self._mailbox.decide(0, generation, Kind.HIT, row.proposal, accepted, bonus)
        self._mailbox.figures.array[mail.DECIDED_AT] = perf_counter()

    def _begin(self) -> None:
        old, slot = self._texts.next_slot()
        if old is not None:
            self._worker.retire(old)
        self._worker.admit(slot, self._texts.entry)
        for _ in range(self._texts.num_chunks):
            self._worker.feed(slot)


def _rule(session: KeepingSession) -> Rule:
    return rule("coupled", NoiseCache(session.manifest.model.vocab_size, 64))
