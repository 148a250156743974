"""Slots and trunks of the draft's side where texts rest, join, move and leave."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import CapacityError
from engines.manifest import Limits
from runtime.backends.api import CallShape
from runtime.kv.slots import SlotRef
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted
from runtime.spec.fallback import Fallback
from runtime.spec.outcome import Outcome
from runtime.workers.draft_row import RowState
from runtime.workers.entry import Entry, Resumed
from runtime.workers.mailbox import Kind
from runtime.workers.prefill import num_chunks
from tests.helpers.draft_bench import Bench
from tests.helpers.toy_pair import VOCAB


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
