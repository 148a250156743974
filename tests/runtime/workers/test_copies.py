"""Lookups in front of the model, and alone: what is proposed, and what the caches hold after it.

The toy session refuses a call whose mask, rows or positions are not right; that a cache row holds
the right token shows in what the model drafts from it later.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError, DeviceError
from engines.manifest import Limits
from runtime.device.host import HostDevice
from runtime.kv.slots import SlotPool, SlotRef
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Lookup, Nothing
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.outcome import Outcome
from runtime.spec.plan import RoundPlan
from runtime.workers.draft_row import RowState
from runtime.workers.entry import Entry, Resumed
from runtime.workers.lookup import LookupWorker
from runtime.workers.mailbox import Kind, Mailbox
from runtime.workers.prefill import num_chunks
from tests.helpers.draft_bench import Bench, benches

GREEDY = SamplingParams()
BOTH = benches(Drafter.BOTH, vocab=4)


def check_source(bench: Bench, row: int) -> bool:
    """The row proposes a copy from its text exactly where it says so, else the model's own
    continuation; whether it is a copy."""
    if bench.kind(row).source is not ProposalKind.LOOKUP:
        bench.check_proposal(row)
        return False
    proposal = bench.proposal(row)
    assert isinstance(proposal, Lookup)
    text = [*bench.texts[row], *proposal.tokens]
    start = len(bench.texts[row])
    assert any(
        text[start - period - 1 : start - period] == text[start - 1 : start]
        and all(text[at] == text[at - period] for at in range(start, len(text)))
        for period in range(1, start)
    ), "what is copied never followed the text's last token"
    return True


def draw_outcome(bench: Bench, row: int, data: st.DataObject) -> Outcome:
    drafts = bench.proposed(row)
    token = data.draw(st.one_of(st.integers(0, 3), st.integers(0, 11)))
    return Outcome(data.draw(st.integers(0, len(drafts))), token)


@given(BOTH, st.data())
def test_rounds_that_look_up_before_they_draft(bench: Bench, data: st.DataObject) -> None:
    """Rows that copied for any number of rounds, beside rows that did not, go on with the model's
    own continuation: their caches are brought up to it."""
    worker, rows = bench.worker, list(range(len(bench.texts)))
    for _ in range(8):
        source = data.draw(st.sampled_from((Drafter.MODEL, Drafter.BOTH)))
        worker.draft(RoundPlan("sd", worker.num_draft, drafter=source))
        for row in list(rows):
            if bench.kind(row) is Kind.NONE:
                assert bench.proposal(row) == Nothing()
            else:
                check_source(bench, row)
            if not bench.end(row, draw_outcome(bench, row, data)):
                rows.remove(row)
        worker.follow()
    bench.device.close()


@given(BOTH, st.data())
def test_rounds_ahead_of_time_with_copies_before_hits_and_misses(
    bench: Bench, data: st.DataObject
) -> None:
    """A hit that is overruled keeps its branch's rows as far as the copy says the same; what is
    prepared and proposed next is the model's own continuation of the text all the same."""
    worker, rows = bench.worker, list(range(len(bench.texts)))
    for _ in range(6):
        waiting = [row for row in rows if worker.rows[row].state is RowState.WAITING]
        worker.prepare()
        hits = {}
        for row in [row for row in rows if row not in waiting]:
            outcome = draw_outcome(bench, row, data)
            if worker.rows[row].candidates and data.draw(st.booleans()):  # likelier a hit
                accepted = min(outcome.accepted, len(worker.rows[row].candidates) - 1)
                outcome = Outcome(accepted, worker.rows[row].candidates[accepted][0])
            slot = worker.rows[row].slot
            hits[row] = outcome in worker.cache._entries.get(slot, (0, {}))[1]
            if not bench.end(row, outcome):
                rows.remove(row)
        worker.adopt()
        worker.commit()
        for row in rows:
            kind = bench.kind(row)
            if kind in (Kind.NONE, Kind.SKIP):
                assert bench.proposal(row) == Nothing()
            else:
                is_copy = check_source(bench, row)
                assert kind.was_prepared == (row not in waiting and hits[row])
                # The trunk lacks the last token at least, of a copy up to all of it and t*.
                width = len(worker.rows[row].unfed)
                assert 1 <= width <= 1 + len(bench.proposed(row))
                assert is_copy or width == 1
                assert kind is not Kind.OVERRULED or width <= len(bench.proposed(row))
    bench.device.close()


def bench_of(drafter: Drafter, *texts: list[int], max_len: int = 200, fallback=Fallback.ZERO):
    limits = Limits(max_len, len(texts), 4, 6)
    bench = Bench(num_draft=4, num_branches=6, limits=limits, drafter=drafter, fallback=fallback)
    bench.start(list(texts), [GREEDY] * len(texts))
    return bench


def test_no_engine_runs_where_every_row_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    repeated = [1, 2, 3, 4, 5] * 5
    bench = bench_of(Drafter.BOTH, repeated, repeated[2:])
    monkeypatch.setattr(bench.session, "prepare", lambda _shape: pytest.fail("the engine was run"))
    for _ in range(20):
        bench.worker.draft()
        for row in (0, 1):
            assert bench.kind(row) is Kind.LOOKUP
            bench.end(row, Outcome(4, bench.texts[row][-1]))  # a period of five
        bench.worker.follow()
    bench.device.close()


def test_a_row_that_copied_for_long_is_fed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One call of a hundred tokens would be a shape of its own, with memory of its own."""
    bench = bench_of(Drafter.BOTH, [1, 2, 3, 4, 5] * 5)
    for _ in range(20):
        bench.worker.draft()
        assert bench.kind(0) is Kind.LOOKUP
        bench.end(0, Outcome(4, bench.texts[0][-1]))
        bench.worker.follow()
    shapes, real = [], bench.session.prepare
    monkeypatch.setattr(
        bench.session, "prepare", lambda shape: (shapes.append(shape), real(shape))[1]
    )
    bench.worker.draft(RoundPlan("sd", 4))
    bench.check_proposal(0)
    assert {shape.num_tokens for shape in shapes} <= {1, 16, 32, 48, 64}
    bench.device.close()


def test_rounds_teach_what_copies_and_drafts_are_worth() -> None:
    """Or a text whose repetitions lead nowhere would be copied from for ever."""
    bench = bench_of(Drafter.BOTH, [1, 2, 3] * 2)
    choice = bench.worker.choice
    copied, drafted = choice.copies.rate(3), choice.model_worth(ProposalKind.JIT, 4)
    bench.worker.draft()
    assert (bench.kind(0), bench.proposed(0)) == (Kind.LOOKUP, (1, 2, 3, 1))
    bench.end(0, Outcome(0, 2))  # 3 2: a single token that stood there before, and a weak match
    bench.worker.follow()
    assert choice.copies.rate(3) < copied
    assert choice.model_worth(ProposalKind.JIT, 4) == drafted
    bench.worker.draft()
    assert bench.kind(0) is Kind.JIT
    bench.end(0, Outcome(4, 7))
    bench.worker.follow()
    assert choice.model_worth(ProposalKind.JIT, 4) > drafted
    bench.device.close()


def test_a_copy_with_the_branchs_own_tokens_leaves_the_root_one_token() -> None:
    """Where text and model agree, taking the copy must not cost feeding it again."""
    bench = bench_of(Drafter.BOTH, [5])
    worker = bench.worker
    # A text that goes on as the model says, twice over: then both propose the same.
    text = [5]
    for _ in range(30):
        text.append(bench.rule.draft_token(bench.logits(text), GREEDY, len(text), None)[0])
    bench.start([text], [GREEDY])
    agreed = 0
    for _ in range(8):
        worker.prepare()
        row = worker.rows[0]
        accepted = len(bench.proposed(0))
        bench.end(0, Outcome(accepted, row.candidates[accepted][0]))
        worker.adopt()
        worker.commit()
        if bench.kind(0) is Kind.OVERRULED and bench.proposed(0) == bench.continuation(0)[0]:
            agreed += 1
            assert len(row.unfed) == 1
    assert agreed > 0
    bench.device.close()


class Alone:
    """A lookup worker called without streams."""

    def __init__(self, num_rows: int = 2, num_draft: int = 3) -> None:
        self.device = HostDevice()
        self.mailbox = Mailbox(self.device, num_rows, num_draft)
        self.worker = LookupWorker(self.device, self.mailbox)
        self.pool = SlotPool(num_rows)

    def admit(self, prompt, *, limit=500, stop_ids=frozenset(), is_fed=True) -> SlotRef:
        slot = self.pool.lease()
        self.worker.admit(slot, Entry(tuple(prompt), GREEDY, limit, stop_ids))
        for _ in range(num_chunks(len(prompt) - 1) if is_fed else 0):
            self.worker.feed(slot)
        return slot

    def proposed(self, slot) -> tuple[int, ...]:
        return self.mailbox.proposal(slot.index, slot.generation).tokens

    def end(self, slot, accepted: int, bonus: int) -> None:
        drafts = self.proposed(slot)
        self.mailbox.decide(slot.index, slot.generation, 0, drafts, accepted, bonus)


def test_lookups_alone_copy_or_propose_nothing() -> None:
    alone = Alone()
    first, second = alone.admit([1, 2, 3, 1, 2]), alone.admit([4])
    alone.worker.draft()
    assert (alone.proposed(first), alone.proposed(second)) == ((3, 1, 2), ())
    alone.end(first, 3, 3)
    alone.end(second, 0, 4)
    alone.worker.follow()
    alone.worker.draft(RoundPlan("sd", 2, drafter=Drafter.LOOKUP))
    assert alone.proposed(first) == (1, 2)
    assert alone.proposed(second) == (4,)  # of the weak match's tokens those worth a row
    alone.device.close()


def test_a_text_that_ended_proposes_nothing_more() -> None:
    """At a stop token, at its limit, and where there is no room left."""
    alone = Alone()
    stopped, full = alone.admit([1, 2, 1], stop_ids=frozenset({9})), alone.admit([1, 1], limit=4)
    alone.worker.draft()
    assert len(alone.proposed(full)) == 1  # one drafted and the bonus token reach the limit
    alone.end(stopped, 0, 9)
    alone.end(full, 1, 1)
    alone.worker.follow()
    alone.worker.draft()
    assert (alone.proposed(stopped), alone.proposed(full)) == ((), ())
    alone.worker.retire(stopped)
    alone.worker.reset()
    alone.device.close()


def test_a_prompt_is_looked_up_in_once_the_target_was_given_all_of_it() -> None:
    alone = Alone(1)
    slot = alone.admit([1, 2] * 40, is_fed=False)
    alone.worker.feed(slot)
    alone.worker.draft()
    assert alone.proposed(slot) == ()
    alone.worker.feed(slot)
    alone.worker.draft()
    assert alone.proposed(slot) == (1, 2, 1)
    alone.device.close()


def test_a_text_that_moves_knows_what_it_missed() -> None:
    alone = Alone()
    gone, slot = alone.admit([7]), alone.admit([1, 2, 3, 1, 2])
    alone.worker.draft()
    alone.worker.retire(gone)
    alone.pool.release(gone)
    new = alone.pool.lease()
    alone.worker.move(slot, new)
    alone.worker.draft()
    assert alone.proposed(new) == (3, 1, 2)
    text = [1, 2, 3, 1, 2, 8, 8, 2, 3]
    alone.worker.resume([Resumed(new, text, len(text) - 1, is_running=True)])
    alone.worker.draft()
    assert alone.proposed(new) == (1, 2, 8)
    with pytest.raises(CapacityError, match="over"):
        alone.worker.feed(slot)
    alone.device.close()


def test_a_prompt_that_was_fed_during_a_rest_goes_on_where_the_target_is() -> None:
    """Counted from where the lookups were told last, its end would never come."""
    alone = Alone(1)
    prompt = [1, 2] * 70
    slot = alone.admit(prompt, is_fed=False)
    alone.worker.resume([Resumed(slot, prompt, 64, is_running=False)])
    alone.worker.feed(slot)
    alone.worker.feed(slot)
    alone.worker.draft()
    assert alone.proposed(slot) == (1, 2, 1)
    alone.device.close()


def test_outcomes_are_not_prepared_without_a_model() -> None:
    alone = Alone()
    for work in (alone.worker.prepare, alone.worker.adopt, alone.worker.commit):
        with pytest.raises(DeviceError, match="only looks up"):
            work()
    alone.device.close()
