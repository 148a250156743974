"""What the draft's side proposes, against an oracle; outcomes are drawn at random."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError
from engines.manifest import Limits
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Lookup, Nothing
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.ngram import NgramIndex
from runtime.spec.outcome import Outcome
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft_row import RowState
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind
from tests.helpers.draft_bench import Bench, benches
from tests.helpers.toy_pair import VOCAB


def same_laws(found: OutcomeStatistics, expected: OutcomeStatistics) -> None:
    for drafted, kind in itertools.product(range(found.num_draft + 1), ProposalKind):
        for law in ("accepted_law", "rank_law"):
            ours, theirs = (getattr(laws, law)(drafted, kind) for laws in (found, expected))
            np.testing.assert_array_equal(ours, theirs)
    assert found.num_rounds == expected.num_rounds
    assert found.num_hits == expected.num_hits
    assert found.predicted_hits == pytest.approx(expected.predicted_hits)


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
