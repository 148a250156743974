"""The draft's side against an oracle: what it proposes is its own continuation of the text.

Whichever way the tokens came about (drafted just in time, or ahead of time in a branch that was
moved to the trunk), they must be what the draft says when it is asked for the text afresh. A
wrong branch, position or logits row never shows in the output of a lossless decoder, only in its
speed; here it shows. Outcomes are drawn at random, not from a target.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError
from engines.manifest import DRAFT, Limits
from runtime.backends.api import CallShape
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.kv.slots import SlotPool, SlotRef
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Lookup, Nothing
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.ngram import NgramIndex
from runtime.spec.outcome import Outcome
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.draft_row import RowState
from runtime.workers.entry import Entry, Resumed
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


def same_laws(found: OutcomeStatistics, expected: OutcomeStatistics) -> None:
    for drafted, kind in itertools.product(range(found.num_draft + 1), ProposalKind):
        for law in ("accepted_law", "rank_law"):
            ours, theirs = (getattr(laws, law)(drafted, kind) for laws in (found, expected))
            np.testing.assert_array_equal(ours, theirs)
    assert found.num_rounds == expected.num_rounds
    assert found.num_hits == expected.num_hits
    assert found.predicted_hits == pytest.approx(expected.predicted_hits)


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


@given(benches(), st.data())
def test_rounds_ahead_of_time(bench: Bench, data: st.DataObject) -> None:
    """Prepared outcomes are the likeliest ones, are hits, and only they; a hit proposes the draft's
    own continuation, and so does a row that was drafted just in time; what was seen is learnt."""
    worker, rows = bench.worker, list(range(len(bench.texts)))
    for _ in range(6):
        waiting = [row for row in rows if worker.rows[row].state is RowState.WAITING]
        plans = {}
        for row in rows:
            drafted = len(bench.proposed(row))
            source = bench.kind(row).source if drafted else ProposalKind.NONE
            plans[row] = source, bench.statistics.plan(source, drafted, worker.num_branches)
        worker.prepare()
        hits: dict[int, bool] = {}
        open_rows = [row for row in rows if row not in waiting]
        for row in open_rows:
            drafts = bench.proposed(row)
            any_outcome = st.tuples(st.integers(0, len(drafts)), st.integers(0, VOCAB - 1))
            if len(bench.texts[row]) + 1 == bench.limits.max_len:  # this round ends it anyway
                hits[row] = False
                bench.end(row, Outcome(*data.draw(any_outcome)))
                rows.remove(row)
                continue
            candidates = bench.candidates(row)
            assert worker.rows[row].candidates == candidates
            source, plan = plans[row]
            likely = [(k, token) for k, n in enumerate(plan.counts) for token in candidates[k][:n]]
            choice = data.draw(st.one_of(st.sampled_from(likely), any_outcome))
            hits[row] = choice in likely
            outcome = Outcome(*choice)
            bench.expected.observe(
                kind=source,
                num_drafted=len(drafts),
                accepted=outcome.accepted,
                rank=dict(zip(candidates[outcome.accepted], range(99), strict=False)).get(
                    outcome.bonus
                ),
                hit=hits[row],
                predicted=plan.hit_rate,
            )
            if not bench.end(row, outcome):
                rows.remove(row)
        worker.adopt()
        worker.commit()
        is_any_ready = any(bench.room(row) and (row in waiting or hits[row]) for row in rows)
        for row in [*open_rows, *waiting]:
            if row not in rows:
                assert bench.proposal(row) == Nothing()
                assert worker.rows[row].state is RowState.OVER
                continue
            if row in waiting or hits[row]:
                bench.check_proposal(row)
                assert bench.kind(row) is (Kind.JIT if row in waiting else Kind.HIT)
                assert len(worker.rows[row].unfed) == 1
            else:
                check_miss(bench, row, is_any_ready)
        same_laws(bench.statistics, bench.expected)
    bench.device.close()


def check_miss(bench: Bench, row: int, is_any_ready: bool) -> None:
    """What a row that missed goes on with, and its root width (the table of DraftRow)."""
    width = 1
    if bench.worker.plan.fallback is Fallback.LOOKUP:
        tokens = bench.proposed(row)
        found = NgramIndex(bench.texts[row]).find(bench.room(row)).tokens
        assert bench.proposal(row) == (Lookup(found[: len(tokens)]) if tokens else Nothing())
        width = 1 + len(tokens)
    elif bench.worker.plan.fallback is Fallback.JIT and bench.room(row) and not is_any_ready:
        bench.check_proposal(row)
        assert bench.kind(row) is Kind.JIT
    else:
        assert bench.proposal(row) == Nothing()
        waits = bench.worker.plan.fallback is Fallback.JIT and bench.room(row)
        assert bench.kind(row) is (Kind.SKIP if waits else Kind.NONE)
    assert len(bench.worker.rows[row].unfed) == width


@given(benches(), st.data())
def test_rounds_just_in_time(bench: Bench, data: st.DataObject) -> None:
    """The same oracle; and the root is two tokens wide only where all drafts were accepted."""
    worker, rows = bench.worker, list(range(len(bench.texts)))
    for _ in range(4):
        worker.draft()
        accepted = {}
        for row in list(rows):
            bench.check_proposal(row)
            drafts = bench.proposed(row)
            accepted[row] = data.draw(st.integers(0, len(drafts)))
            all_accepted = bool(drafts) and accepted[row] == len(drafts)
            outcome = Outcome(accepted[row], data.draw(st.integers(0, VOCAB - 1)))
            if not bench.end(row, outcome):
                rows.remove(row)
            accepted[row] = all_accepted
        worker.follow()
        for row in rows:
            assert len(worker.rows[row].unfed) == (2 if accepted[row] else 1)
    bench.device.close()


@pytest.mark.parametrize("fallback", Fallback)
@pytest.mark.parametrize("max_len", [12, 13])
def test_hits_and_misses_up_to_the_very_end_of_the_context_stay_inside_the_cache(
    max_len: int, fallback: Fallback
) -> None:
    """E13: at 12 + 4 positions the trunk has not one row to spare."""
    bench = Bench(num_draft=4, num_branches=5, limits=Limits(max_len, 2, 4, 5), fallback=fallback)
    for length, hit in itertools.product(range(1, max_len), (True, False)):
        bench.start([[1] * length, [1] * (max_len - 1)], [SamplingParams()] * 2)
        goes_on = True
        while goes_on:
            bench.worker.prepare()
            best = len(bench.proposed(0))
            goes_on = bench.end(0, Outcome(best, bench.candidates(0)[best][0] if hit else 11))
            if len(bench.texts[1]) < max_len:  # then over: a dummy in all further calls
                bench.end(1, Outcome(0, 5))
            bench.worker.adopt()
            bench.worker.commit()
            assert len(bench.texts[0]) + len(bench.proposed(0)) <= max_len
    bench.device.close()


def hit_all(bench: Bench) -> None:
    """A round whose rows all accept everything and hit."""
    bench.worker.prepare()
    for row in range(len(bench.texts)):
        best = len(bench.proposed(row))
        bench.end(row, Outcome(best, bench.candidates(row)[best][0]))
    bench.worker.adopt()
    bench.worker.commit()


@pytest.mark.parametrize("num_new", [1, 2, 3, 9, 70])
def test_after_a_rest_the_trunk_holds_the_text_and_not_what_was_drafted_before_it(num_new) -> None:
    """The proposal's rows lie where the text went on otherwise; a draft that kept them would be
    wrong for the rest of the text, and only slow."""
    bench = Bench(num_draft=3, num_branches=6, limits=Limits(150, 1, 3, 6))
    bench.start([[1, 2]], [SamplingParams()])
    for _ in range(3):
        hit_all(bench)
    row = bench.worker.rows[0]
    assert row.trunk > len(row.tokens), "no proposal was there to be forgotten"
    text = [
        *row.tokens,
        *((token + 1) % VOCAB for token in (*row.proposal, *range(num_new))[:num_new]),
    ]
    for _ in range(2):  # and it may be told twice
        bench.worker.resume([Resumed(bench.slots[0], text, len(text) - 1, is_running=True)])
    for _ in range(num_chunks(len(text)) + 1):  # one too many does nothing
        bench.worker.catch_up(bench.slots[0])
    bench.texts = [text]
    layout = bench.worker._calls.layout
    held = bench.session._caches.view(0)[0, 0][layout.trunk_rows(len(text) - 1), 0]
    assert held.astype(int).tolist() == text[:-1]
    assert row.unfed == text[-1:]
    bench.worker.draft()
    bench.check_proposal(0)
    bench.device.close()


@pytest.mark.parametrize("num_fed", [0, 64, 128])
def test_a_prompt_that_was_fed_without_the_draft_goes_on_where_the_target_is(num_fed) -> None:
    bench = Bench(num_draft=2, num_branches=3, limits=Limits(190, 1, 2, 3))
    worker, prompt = bench.worker, [1 + i % 9 for i in range(150)]
    bench.start([], [])
    slot = bench.pool.lease()
    worker.admit(slot, Entry(prompt, SamplingParams(), 190))
    worker.resume([Resumed(slot, prompt, num_fed, is_running=False)])
    for _ in range(3):
        worker.catch_up(slot)
    assert worker.rows[0].trunk == num_fed
    while worker.rows[0].state is RowState.PROMPT:
        worker.feed(slot)
    held = bench.session._caches.view(0)[0, 0][worker._calls.layout.trunk_rows(149), 0]
    assert held.astype(int).tolist() == prompt[:-1]
    bench.device.close()


@pytest.mark.parametrize("length", range(90, 110))
def test_catching_up_stays_inside_the_cache_at_the_end_of_the_context(length) -> None:
    """A chunk is padded: begun anywhere it would reach past the last row."""
    bench = Bench(num_draft=3, num_branches=2, limits=Limits(150, 1, 3, 2))
    bench.start([[1] * length], [SamplingParams()])
    bench.worker.resume([Resumed(bench.slots[0], [1] * 149, 148, is_running=True)])
    for _ in range(2):
        bench.worker.catch_up(bench.slots[0])
    assert bench.worker.rows[0].trunk == 148
    bench.device.close()


def test_a_long_rows_growth_does_not_cost_a_short_row_its_winners_logits() -> None:
    """Binding more rows drops the outputs of earlier calls. Row 1 once grew the caches between
    row 0's branch steps and the commit that reads them."""
    bench = Bench(num_draft=2, num_branches=4, limits=Limits(150, 2, 2, 4))
    bench.start([[1, 2], [1] * 110], [SamplingParams()] * 2)
    bound = set()
    for _ in range(6):  # row 1 passes 120 positions, all that 128 rows hold beside 8 of scratch
        hit_all(bench)
        for row in range(2):
            bench.check_proposal(row)
            assert isinstance(bench.proposal(row), Drafted)
        bound.add(bench.session.prepare(CallShape(0, 1, 1, 1)).mask.shape[-1])
    assert len(bound) == 2
    bench.device.close()


def test_after_a_reset_a_text_pays_for_its_own_rows_alone() -> None:
    """Every call pays for each bound row, so a short text must not inherit a long one's."""
    bench = Bench(num_draft=2, num_branches=3, limits=Limits(190, 1, 2, 3))
    for length in (180, 3):
        bench.start([[1] * length], [SamplingParams()])
        bench.worker.prepare()
    step = bench.session.prepare(CallShape(0, 1, 1, 1))
    assert step.mask.shape[-1] == bench.session.manifest.lengths[0]
    bench.device.close()


def test_a_slot_keeps_no_rows_of_drafts_that_a_rest_passed_by() -> None:
    """The text goes on in plain rounds with other tokens than were proposed; told of its length
    alone, the trunk's last rows were kept as if they were its own."""
    bench = Bench(num_draft=3, num_branches=8, limits=Limits(60, 1, 3, 8))
    bench.start([[3, 7]], [SamplingParams()])
    bench.worker.draft()
    row = bench.worker.rows[0]
    assert row is not None
    assert row.trunk > len(row.tokens)
    bench.worker.retire(bench.slots[0], 20)
    assert bench.worker._calls.kept[0] == 2
    bench.device.close()


def test_a_retired_row_learns_nothing_and_its_slot_is_free() -> None:
    """Its outcomes are stale: counting them would teach the fan-out a law of leftovers."""
    bench = Bench(num_draft=3, num_branches=4, limits=Limits(60, 2, 3, 4))
    bench.start([[1, 2], [3, 4]], [SamplingParams()] * 2)
    hit_all(bench)
    bench.worker.retire(bench.slots[0])
    bench.worker.prepare()
    bench.end(1, Outcome(0, 5))
    bench.worker.adopt()
    bench.worker.commit()
    assert bench.worker.rows[0] is None
    assert sum(bench.statistics.num_rounds.values()) == 3
    bench.device.close()


@pytest.mark.parametrize("fallback", Fallback)
def test_a_row_that_moves_goes_on_as_if_it_had_always_been_there(fallback: Fallback) -> None:
    """Compaction: the caches, the proposal and the kept logits go with the text."""
    limits = Limits(90, 3, 3, 5)
    bench = Bench(num_draft=3, num_branches=5, limits=limits, fallback=fallback)
    params = SamplingParams(temperature=0.7, seed=4)
    bench.start([[1, 2], [3] * 20, [4, 5, 6]], [params] * 3)
    hit_all(bench)
    before = bench.proposal(2)
    bench.worker.retire(bench.slots[0])
    bench.pool.release(bench.slots[0])
    new = bench.pool.lease()
    bench.worker.move(bench.slots[2], new)
    bench.slots[0], bench.texts[0] = new, bench.texts.pop(2)
    assert bench.proposal(0) == before
    bench.join([7, 8, 9], params)  # into the slot that was left
    for _ in range(3):
        hit_all(bench)
        for row in range(3):
            bench.check_proposal(row)
    bench.device.close()


def test_a_prompt_between_running_rows_survives_their_calls() -> None:
    """A dummy row once wrote over the first rows of the slot's prompt."""
    bench = Bench(num_draft=3, num_branches=5, limits=Limits(190, 3, 3, 5), fallback=Fallback.JIT)
    params = SamplingParams(temperature=0.7, seed=4)
    bench.start([[1, 2], [3] * 150, [4, 5, 6]], [params] * 3)
    bench.worker.retire(bench.slots[1])
    joining = SlotRef(1, 2)
    prompt = (1 + np.arange(150) % 11).tolist()
    bench.worker.admit(joining, Entry(prompt, params, 190))
    while bench.worker.rows[1].state is RowState.PROMPT:
        bench.worker.prepare()
        for row in (0, 2):
            bench.end(row, Outcome(0, 11))
        bench.worker.adopt()  # both miss: drafted at once, with the prompt's row in between
        bench.worker.commit()
        bench.worker.feed(joining)
    # A toy's answer depends on two tokens alone, so look at what the cache holds.
    held = bench.session._caches.view(0)[1, 0, bench.worker._calls.layout.trunk_rows(149)]
    assert held[:, 0].tolist() == prompt[:-1]
    bench.slots[1], bench.texts[1] = joining, prompt
    hit_all(bench)
    for row in range(3):
        bench.check_proposal(row)
    bench.device.close()


def test_leases_that_are_over_are_refused_everywhere() -> None:
    """A launch that was queued for a text that left must not touch the slot's next one."""
    bench = Bench(num_draft=2, num_branches=2, limits=Limits(60, 2, 2, 2))
    bench.start([[1, 2]], [SamplingParams()])
    old = bench.slots[0]
    with pytest.raises(CapacityError, match="before lease 1 was retired"):
        bench.worker.admit(SlotRef(0, 2), Entry([5], SamplingParams(), 60))
    bench.worker.retire(old)
    bench.worker.admit(SlotRef(0, 2), Entry([5], SamplingParams(), 60))
    for use in (
        lambda: bench.worker.feed(old),
        lambda: bench.worker.retire(old),
        lambda: bench.worker.move(old, SlotRef(1, 1)),
    ):
        with pytest.raises(CapacityError, match="lease 1 of slot 0 is over"):
            use()
    bench.mailbox.decide(0, 1, Kind.NONE, (), 0, 7)  # an outcome for the old text
    with pytest.raises(CapacityError, match="lease 2 of slot 0 is over"):
        bench.worker.adopt()
    bench.device.close()


def test_nothing_is_drafted_behind_a_stop_token() -> None:
    """E12: the draft's call count stays when the text has ended, whatever the fallback."""
    bench = Bench(num_draft=2, num_branches=2, limits=Limits(60, 1, 2, 2), fallback=Fallback.JIT)
    slot = bench.pool.lease()
    bench.worker.admit(slot, Entry([1, 2], SamplingParams(), 60, frozenset({9})))
    bench.worker.feed(slot)
    bench.worker.prepare()
    before = bench.session.num_runs
    bench.mailbox.decide(0, slot.generation, Kind.NONE, (), 0, 9)
    bench.worker.adopt()
    bench.worker.commit()
    bench.worker.prepare()
    assert bench.session.num_runs == before
    bench.device.close()


def test_more_than_was_built_is_refused_by_name() -> None:
    """G11, E14: before the first call, not as a write that leaves the cache."""
    for what, option, built in (
        ({"num_draft": 5, "num_branches": 2}, "--num-draft 5", "built for 4"),
        ({"num_draft": 4, "num_branches": 9}, "--max-branches 9", "built for 2"),
    ):
        with pytest.raises(CapacityError, match=f"{built}.*{option}"):
            Bench(limits=Limits(60, 1, 4, 2), **what)


def test_the_law_of_a_rejected_place_knows_how_many_outcomes_are_prepared(monkeypatch) -> None:
    """Saguaro shapes each drafted token's law for the list prepared after its rejection; a wrong
    number there lowers hits and shows nowhere else."""
    bench = Bench(num_draft=3, num_branches=6, limits=Limits(60, 2, 3, 6), verify="ratio")
    bench.start([[1, 2], [3, 4]], [SamplingParams(temperature=1.0, seed=1)] * 2)
    asked: dict[int, set[int]] = {}
    inner = type(bench.rule).draft_token

    def draft_token(self, logits, params, position, ids_map=None, *, num_prepared=0):
        asked.setdefault(position, set()).add(num_prepared)
        return inner(self, logits, params, position, ids_map, num_prepared=num_prepared)

    monkeypatch.setattr(type(bench.rule), "draft_token", draft_token)
    plan = bench.statistics.plan(ProposalKind.HIT, 3, 6)
    bench.worker.prepare()
    # No drafts yet: all branches begin at position 2, and draft positions 3, 4 and 5.
    assert asked == {3 + depth: {plan.counts[depth]} for depth in range(3)}
    bench.device.close()
