"""A draft worker and an oracle for it: what it proposes is its own continuation of the text.

Whichever way the tokens came about (drafted just in time, or ahead of time in a branch that was
moved to the trunk), they must be what the draft says when it is asked for the text afresh. A
wrong branch, position or logits row never shows in the output of a lossless decoder, only in its
speed; here it shows.
"""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from engines.manifest import DRAFT, Limits
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.kv.slots import SlotPool
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.outcome import Outcome
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.entry import Entry
from runtime.workers.mailbox import KIND, Kind, Mailbox
from runtime.workers.prefill import num_chunks
from tests.helpers.toy_pair import VOCAB, tables


class Bench:
    """A draft worker called without streams, the texts it should know, and the oracle."""

    def __init__(
        self,
        *,
        num_draft,
        num_branches,
        limits,
        draft_vocab=None,
        verify="coupled",
        seed=0,
        fallback=Fallback.ZERO,
        drafter=Drafter.MODEL,
    ) -> None:
        _, table, ids = tables(seed, draft_vocab=draft_vocab)
        self.device = HostDevice()
        self.limits = limits
        self.session = ToySession(DRAFT, table, limits, self.device, vocab_map=ids)
        self.mailbox = Mailbox(self.device, limits.max_batch, num_draft)
        self.statistics = OutcomeStatistics(num_draft, num_branches)
        self.expected = OutcomeStatistics(num_draft, num_branches)
        self.rule = rule(verify)
        self.worker = DraftWorker(
            self.session,
            self.rule,
            self.mailbox,
            num_draft=num_draft,
            num_branches=num_branches,
            statistics=self.statistics,
            fallback=fallback,
            drafter=drafter,
        )
        self.pool = SlotPool(limits.max_batch)

    def start(self, texts, params) -> None:
        self.texts = [list(text) for text in texts]
        self.params = params
        self.worker.reset()
        self.pool = SlotPool(self.worker.mailbox.num_rows)
        self.slots = [self.pool.lease() for _ in texts]
        for slot, text, law in zip(self.slots, texts, params, strict=True):
            self.feed(slot, text, law)

    def feed(self, slot, text, law) -> None:
        self.worker.admit(slot, Entry(tuple(text), law, self.limits.max_len))
        for _ in range(num_chunks(len(text) - 1)):
            self.worker.feed(slot)

    def join(self, text, law) -> None:
        """One more row, in the slot behind the others."""
        self.pool.release(self.slots.pop())
        self.slots.append(self.pool.lease())
        self.texts.append(list(text))
        self.feed(self.slots[-1], text, law)

    def logits(self, text) -> np.ndarray:
        return self.session.table[text[-2] if len(text) > 1 else 0, text[-1]]

    def continuation(self, row):
        """The K tokens, and their laws, that the draft gives to the row's text."""
        text, laws = list(self.texts[row]), []
        for _ in range(self.room(row)):
            token, law = self.rule.draft_token(
                self.logits(text), self.params[row], len(text), self.session.vocab_map
            )
            text.append(token)
            laws.append(law)
        return tuple(text[len(self.texts[row]) :]), laws

    def candidates(self, row):
        """Likely bonus tokens after each accepted count."""
        text, drafts = self.texts[row], self.proposed(row)
        return [
            self.rule.bonus_candidates(
                self.logits([*text, *drafts[:k]]),
                self.params[row],
                len(text) + k,
                self.statistics.num_ranks,
                exclude=drafts[k] if k < len(drafts) else None,
                ids_map=self.session.vocab_map,
            ).tolist()
            for k in range(len(drafts) + 1)
        ]

    def proposed(self, row) -> tuple[int, ...]:
        return self.proposal(row).tokens

    def proposal(self, row):
        return self.mailbox.proposal(row, self.slots[row].generation)

    def room(self, row) -> int:
        """Drafts are cut where the text has to end."""
        return min(self.worker.num_draft, self.limits.max_len - len(self.texts[row]) - 1)

    def check_proposal(self, row) -> None:
        proposal = self.proposal(row)
        tokens, laws = self.continuation(row)
        assert proposal.tokens == tokens
        if self.rule.name == "ratio" and not self.params[row].is_greedy:
            for found, law in zip(proposal.law if tokens else (), laws, strict=True):
                np.testing.assert_array_equal(found.ids, law.ids)
                np.testing.assert_allclose(found.probs, law.probs)
        elif tokens:
            assert proposal.law is None

    def end(self, row, outcome: Outcome) -> bool:
        """Decide a row and note its text; True while it goes on."""
        drafts = self.proposed(row)
        generation = self.slots[row].generation
        self.mailbox.decide(row, generation, 0, drafts, outcome.accepted, outcome.bonus)
        self.texts[row] += [*drafts[: outcome.accepted], outcome.bonus]
        return len(self.texts[row]) < self.limits.max_len

    def kind(self, row) -> Kind:
        return Kind(int(self.mailbox.proposals.array[row, KIND]))


@st.composite
def benches(draw, drafter=Drafter.MODEL, vocab=VOCAB):
    num_draft, num_branches = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    batch = draw(st.integers(1, 3))
    max_len = draw(st.sampled_from([12, 28, 150]))
    bench = Bench(
        num_draft=num_draft,
        num_branches=num_branches,
        limits=Limits(
            max_len,
            batch,
            num_draft + draw(st.integers(0, 2)),  # K and W below the built ones
            num_branches + draw(st.integers(0, 2)),
        ),
        draft_vocab=draw(st.sampled_from([None, 7])),
        verify=draw(st.sampled_from(["coupled", "ratio"])),
        seed=draw(st.integers(0, 9)),
        fallback=draw(st.sampled_from(Fallback)),
        drafter=drafter,
    )
    params = [
        SamplingParams(temperature=draw(st.sampled_from([0.0, 0.8])), seed=draw(st.integers(0, 99)))
        for _ in range(batch)
    ]
    lengths = [draw(st.integers(1, min(max_len - 1, 70))) for _ in range(batch)]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    bench.start([random.integers(0, vocab, length).tolist() for length in lengths], params)
    return bench
