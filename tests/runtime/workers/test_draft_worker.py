"""The draft's side against an oracle: what it proposes is its own continuation of the text.

Whichever way the tokens came about (drafted just in time, or ahead of time in a branch that was
moved to the trunk), they must be what the draft says when it is asked for the text afresh. A
wrong branch, position or logits row never shows in the output of a lossless decoder, only in its
speed; here it shows. Outcomes are drawn at random, not from a target.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.manifest import DRAFT, Limits
from runtime.backends.api import CallShape
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.kv.slots import SlotPool
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Nothing
from runtime.spec.fanout import fan_out
from runtime.spec.outcome import Outcome
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from tests.helpers.toy_pair import VOCAB, tables


class Bench:
    """A draft worker called without streams, the texts it should know, and the oracle."""

    def __init__(
        self, *, num_draft, num_branches, limits, draft_vocab=None, verify="coupled", seed=0
    ) -> None:
        _, table, ids = tables(seed, draft_vocab=draft_vocab)
        self.device = HostDevice()
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
        )
        self.pool = SlotPool(limits.max_batch)

    def start(self, texts, params) -> None:
        self.texts = [list(text) for text in texts]
        self.params = params
        self.worker.start(texts, params, [self.pool.lease() for _ in texts])

    def logits(self, text) -> np.ndarray:
        return self.session.table[text[-2] if len(text) > 1 else 0, text[-1]]

    def continuation(self, row):
        """The K tokens, and their laws, that the draft gives to the row's text."""
        text, laws = list(self.texts[row]), []
        for _ in range(self.worker.num_draft):
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
        return self.mailbox.proposal(row).tokens

    def check_proposal(self, row) -> None:
        proposal = self.mailbox.proposal(row)
        tokens, laws = self.continuation(row)
        assert proposal.tokens == tokens
        if self.rule.name == "ratio" and not self.params[row].is_greedy:
            for found, law in zip(proposal.law, laws, strict=True):
                np.testing.assert_array_equal(found.ids, law.ids)
                np.testing.assert_allclose(found.probs, law.probs)
        else:
            assert proposal.law is None

    def end(self, row, outcome: Outcome) -> bool:
        """Decide a row and note its text; True while it goes on."""
        drafts = self.proposed(row)
        self.mailbox.decide(row, drafts, outcome)
        self.texts[row] += [*drafts[: outcome.accepted], outcome.bonus]
        return len(self.texts[row]) < self.worker.max_len


def same_laws(found: OutcomeStatistics, expected: OutcomeStatistics) -> None:
    for drafted in range(found.num_draft + 1):
        np.testing.assert_array_equal(found.accepted_law(drafted), expected.accepted_law(drafted))
        np.testing.assert_array_equal(found.rank_law(drafted), expected.rank_law(drafted))
    assert found.num_rounds == expected.num_rounds
    assert found.num_hits == expected.num_hits


@st.composite
def benches(draw):
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
    )
    params = [
        SamplingParams(temperature=draw(st.sampled_from([0.0, 0.8])), seed=draw(st.integers(0, 99)))
        for _ in range(batch)
    ]
    lengths = [draw(st.integers(1, min(max_len - 1, 70))) for _ in range(batch)]
    random = np.random.default_rng(draw(st.integers(0, 99)))
    bench.start([random.integers(0, VOCAB, length).tolist() for length in lengths], params)
    return bench


@given(benches(), st.data())
def test_rounds_ahead_of_time(bench: Bench, data: st.DataObject) -> None:
    """Prepared outcomes are the likeliest ones, are hits, and only they; a hit proposes the
    draft's own continuation; what was seen is learnt."""
    worker, rows = bench.worker, list(range(len(bench.texts)))
    for _ in range(6):
        laws = [
            (bench.statistics.accepted_law(n), bench.statistics.rank_law(n))
            for n in (len(bench.proposed(row)) for row in range(len(bench.texts)))
        ]
        worker.prepare()
        prepared: dict[int, bool] = {}
        open_rows = list(rows)
        for row in open_rows:
            drafts = bench.proposed(row)
            candidates = bench.candidates(row)
            assert worker.rows[row].candidates == candidates
            counts = fan_out(*laws[row], worker.num_branches)
            likely = [(k, token) for k, n in enumerate(counts) for token in candidates[k][:n]]
            accepted = st.integers(0, len(drafts))
            any_outcome = st.tuples(accepted, st.integers(0, VOCAB - 1))
            choice = data.draw(st.one_of(st.sampled_from(likely), any_outcome))
            prepared[row] = choice in likely
            outcome = Outcome(*choice)
            bench.expected.observe(
                num_drafted=len(drafts),
                accepted=outcome.accepted,
                rank=dict(zip(candidates[outcome.accepted], range(99), strict=False)).get(
                    outcome.bonus
                ),
                after_hit=bool(drafts),
                hit=prepared[row],
            )
            if not bench.end(row, outcome):
                rows.remove(row)
        worker.adopt()
        worker.commit()
        for row in open_rows:
            if row not in rows:
                assert bench.mailbox.proposal(row) == Nothing()
                assert not worker.rows[row].active
                continue
            if prepared[row]:
                bench.check_proposal(row)
            else:
                assert bench.mailbox.proposal(row) == Nothing()
            assert len(worker.rows[row].unfed) == 1  # the root width after a hit and a miss
        same_laws(bench.statistics, bench.expected)
    bench.device.close()


@given(benches(), st.data())
def test_rounds_just_in_time(bench: Bench, data: st.DataObject) -> None:
    """The same oracle; and the root is two tokens wide only where all drafts were accepted."""
    worker, rows = bench.worker, list(range(len(bench.texts)))
    for _ in range(4):
        worker.draft()
        for row in list(rows):
            bench.check_proposal(row)
            accepted = data.draw(st.integers(0, worker.num_draft))
            outcome = Outcome(accepted, data.draw(st.integers(0, VOCAB - 1)))
            if not bench.end(row, outcome):
                rows.remove(row)
        worker.adopt()
        worker.commit()
        for row in rows:
            accepted = bench.mailbox.outcome(row).accepted
            assert len(worker.rows[row].unfed) == (2 if accepted == worker.num_draft else 1)
            assert bench.mailbox.proposal(row) == Nothing()
    bench.device.close()


@pytest.mark.parametrize("max_len", [12, 13])
def test_hits_up_to_the_very_end_of_the_context_stay_inside_the_cache(max_len: int) -> None:
    """At 12 + 4 positions the trunk has not one row to spare."""
    bench = Bench(num_draft=4, num_branches=5, limits=Limits(max_len, 1, 4, 5))
    for length in range(1, max_len):
        bench.pool = SlotPool(1)
        bench.start([[1] * length], [SamplingParams()])
        goes_on = True
        while goes_on:
            bench.worker.prepare()
            best = len(bench.proposed(0))
            goes_on = bench.end(0, Outcome(best, bench.candidates(0)[best][0]))
            bench.worker.adopt()
            bench.worker.commit()
    bench.device.close()


def test_a_long_rows_growth_does_not_cost_a_short_row_its_winners_logits() -> None:
    """Binding more rows drops the outputs of earlier calls. Row 1 once grew the caches between
    row 0's branch steps and the commit that reads them."""
    bench = Bench(num_draft=2, num_branches=4, limits=Limits(150, 2, 2, 4))
    bench.start([[1, 2], [1] * 110], [SamplingParams()] * 2)
    bound = set()
    for _ in range(6):  # row 1 passes 120 positions, all that 128 rows hold beside 8 of scratch
        bench.worker.prepare()
        for row in range(2):
            best = len(bench.proposed(row))
            assert bench.worker.rows[row].candidates == bench.candidates(row)
            bench.end(row, Outcome(best, bench.candidates(row)[best][0]))
        bench.worker.adopt()
        bench.worker.commit()
        assert all(isinstance(bench.mailbox.proposal(row), Drafted) for row in range(2))
        bound.add(bench.session.prepare(CallShape(0, 1, 1, 1)).mask.shape[-1])
    assert len(bound) == 2
    bench.device.close()


def test_a_new_batch_pays_for_its_own_rows_alone() -> None:
    """Every call pays for each bound row, so a short text must not inherit a long one's."""
    bench = Bench(num_draft=2, num_branches=3, limits=Limits(190, 1, 2, 3))
    for length in (180, 3):
        bench.pool = SlotPool(1)
        bench.start([[1] * length], [SamplingParams()])
        bench.worker.prepare()
    step = bench.session.prepare(CallShape(0, 1, 1, 1))
    assert step.mask.shape[-1] == bench.session.manifest.lengths[0]
    bench.device.close()


def test_a_retired_row_proposes_nothing_and_learns_nothing() -> None:
    """Its outcomes are stale: counting them would teach the fan-out a law of leftovers."""
    bench = Bench(num_draft=3, num_branches=4, limits=Limits(60, 2, 3, 4))
    bench.start([[1, 2], [3, 4]], [SamplingParams()] * 2)
    bench.worker.prepare()
    for row in range(2):
        bench.end(row, Outcome(0, bench.candidates(row)[0][0]))
    bench.worker.adopt()
    bench.worker.commit()
    bench.worker.retire(0)
    bench.worker.prepare()
    bench.end(1, Outcome(0, 5))
    bench.worker.adopt()
    assert bench.mailbox.proposal(0) == Nothing()
    assert sum(bench.statistics.num_rounds.values()) == 3
    bench.device.close()
