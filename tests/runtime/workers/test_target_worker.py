"""The calls the target's side makes; what they answer is the exactness tests' business."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError, CapacityError
from engines.manifest import TARGET, Limits
from runtime.backends.api import CallShape
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.kv.slots import SlotRef
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.workers import mailbox as mail
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind, Mailbox
from runtime.workers.prefill import num_chunks
from runtime.workers.target import TargetWorker
from tests.helpers.toy_pair import tables

BATCH, K, MAX_LEN = 3, 3, 200
PARAMS = [SamplingParams(), SamplingParams(temperature=1.0, seed=5), SamplingParams()]
LEASES = [SlotRef(row, 1) for row in range(BATCH)]


class Recorded(ToySession):
    """Notes the shapes of the calls that are prepared."""

    def prepare(self, shape: CallShape):
        self.shapes = [*getattr(self, "shapes", []), shape]
        return super().prepare(shape)

    @property
    def widths(self) -> list[int]:
        return [shape.num_tokens for shape in self.shapes]


@pytest.fixture
def make():
    device = HostDevice()

    def worker(**options) -> TargetWorker:
        session = Recorded(TARGET, tables(0)[0], Limits(MAX_LEN, BATCH, K, 1), device)
        return TargetWorker(session, rule("coupled"), Mailbox(device, BATCH, K), **options)

    yield worker
    device.close()


def join(worker: TargetWorker, slot: SlotRef, prompt, params=PARAMS[0], **options) -> None:
    worker.admit(slot, Entry(prompt, params, MAX_LEN, **options))
    for _ in range(num_chunks(len(prompt) - 1)):
        worker.feed(slot)


def start(worker: TargetWorker, *lengths: int) -> None:
    worker.reset()
    for slot, length, params in zip(LEASES, lengths, PARAMS, strict=False):
        join(worker, slot, [1] * length, params)
    worker.session.shapes = []


def outcome(worker: TargetWorker, row: int) -> tuple[int, list[int]]:
    """The row's kind and emitted tokens."""
    cells = worker.mailbox.outcomes.array[row].tolist()
    emitted = cells[mail.EMITTED : mail.EMITTED + cells[mail.ACCEPTED] + 1]
    return cells[mail.KIND], emitted


def test_an_engine_that_rounds_single_tokens_differently_never_gets_one(make) -> None:
    """The probe found that plain decoding would differ from verification there."""
    plain, padded = make(), make(min_tokens=2)
    for worker in (plain, padded):
        start(worker, 5, 9)
        for _ in range(4):
            worker.verify()
    assert plain.session.widths == [1] * 4
    assert padded.session.widths == [2] * 4
    assert [outcome(padded, row) for row in range(2)] == [outcome(plain, row) for row in range(2)]


def test_a_row_that_has_ended_does_not_widen_the_calls_of_the_others(make) -> None:
    worker = make()
    start(worker, 5, 9)
    worker.mailbox.propose(0, 1, Kind.HIT, (1, 2, 3))
    worker.verify()
    worker.retire(LEASES[0])
    worker.verify()
    assert worker.session.widths == [1 + K, 1]


def test_a_call_covers_the_slots_up_to_the_last_running_one(make) -> None:
    """Slots behind it, a prompt being fed among them, would only make the call dearer."""
    worker = make()
    start(worker, 5, 9)
    worker.admit(LEASES[2], Entry([1] * 100, PARAMS[0], MAX_LEN))
    worker.feed(LEASES[2])
    worker.session.shapes = []
    worker.verify()
    worker.retire(LEASES[1])
    worker.verify()
    worker.feed(LEASES[2])
    worker.verify()
    calls = [shape.num_slots for shape in worker.session.shapes if shape.num_logits == 1]
    assert calls == [2, 1, 1, 3]  # the third is the chunk itself


def test_a_prompt_between_running_rows_survives_their_rounds(make) -> None:
    """A dummy row once wrote over the first rows of the slot's prompt."""
    prompt = (1 + np.arange(150) % 11).tolist()
    alone = make()
    join(alone, SlotRef(0, 1), prompt)
    alone.verify()
    worker = make()
    start(worker, 5)
    join(worker, LEASES[2], [3] * 7)
    worker.admit(LEASES[1], Entry(prompt, PARAMS[0], MAX_LEN))
    for drafts in ((1, 2, 3), (), (2,)):
        worker.mailbox.propose(0, 1, Kind.HIT, drafts)
        worker.feed(LEASES[1])
        if worker.lengths[1] < len(prompt):
            worker.verify()
    # A toy's answer depends on two tokens alone, so look at what the cache holds.
    held = worker.session._caches.view(0)[1, 0, : len(prompt) - 1]
    assert held[:, 0].tolist() == prompt[:-1]
    worker.verify()
    assert outcome(worker, 1) == outcome(alone, 0)


def test_a_row_that_sits_out_is_not_judged_and_does_not_grow(make) -> None:
    worker = make()
    start(worker, 5, 9)
    worker.mailbox.propose(0, 1, Kind.SKIP)
    before = list(worker.lengths)
    worker.verify()
    assert outcome(worker, 0)[0] == Kind.SKIP
    assert worker.lengths == [before[0], before[1] + 1, before[2]]
    # With nobody to judge there is no call at all.
    worker.mailbox.propose(1, 1, Kind.SKIP)
    worker.session.shapes = []
    worker.verify()
    assert [outcome(worker, row)[0] for row in range(2)] == [Kind.SKIP] * 2
    assert worker.session.shapes == []


def test_a_proposal_to_the_slots_last_holder_is_not_verified(make) -> None:
    worker = make()
    start(worker, 5)
    worker.mailbox.propose(0, 1, Kind.HIT, (1, 2, 3))
    worker.retire(LEASES[0])
    join(worker, SlotRef(0, 2), [1] * 5)
    worker.session.shapes = []
    worker.verify()
    assert worker.session.widths == [1]
    assert outcome(worker, 0)[0] == Kind.NONE


def test_a_row_that_moves_goes_on_as_if_it_had_stayed(make) -> None:
    stayed, moved = make(), make()
    for worker in (stayed, moved):
        start(worker, 5, 9, 70)
        worker.verify()
    moved.retire(LEASES[0])
    moved.move(LEASES[2], SlotRef(0, 2))
    for _ in range(3):
        stayed.verify()
        moved.verify()
        assert outcome(moved, 0) == outcome(stayed, 2)
        assert outcome(moved, 1) == outcome(stayed, 1)
    assert moved.session.shapes[-1].num_slots == 2


def test_leases_that_are_over_are_refused_everywhere(make) -> None:
    """A launch that was queued for a text that left must not touch the slot's next one."""
    worker = make()
    start(worker, 5)
    with pytest.raises(CapacityError, match="before lease 1 was retired"):
        worker.admit(SlotRef(0, 2), Entry([1], PARAMS[0], MAX_LEN))
    worker.retire(LEASES[0])
    join(worker, SlotRef(0, 2), [1] * 5)
    for use in (worker.feed, worker.retire, lambda slot: worker.move(slot, LEASES[1])):
        with pytest.raises(CapacityError, match="lease 1 of slot 0 is over"):
            use(LEASES[0])


def test_a_text_ends_where_its_stop_or_limit_is_decided_not_where_the_host_finds_out(make) -> None:
    """The host queues the next round before it reads the last one: a verification of texts that
    are over would be in vain, and one beyond the limit would leave the cache."""
    worker = make()
    table = worker.session.table
    first = int(table[1, 2].argmax())
    worker.reset()
    join(worker, LEASES[0], [1, 2], stop_ids=frozenset([first]))
    worker.admit(LEASES[1], Entry([1, 2], PARAMS[0], 3))
    worker.feed(LEASES[1])
    worker.session.shapes = []
    for place in (0, 1):
        worker.verify(0, place)
    kinds = [
        [worker.mailbox.read(place).rows[row][mail.KIND] for row in (0, 1)] for place in (0, 1)
    ]
    assert kinds == [[Kind.NONE] * 2, [Kind.SKIP] * 2]
    assert len(worker.session.shapes) == 1
    worker.retire(LEASES[0])
    worker.move(LEASES[1], SlotRef(0, 2))
    worker.retire(SlotRef(0, 2))
    assert worker.slots == [None] * BATCH


def test_a_stop_inside_of_what_a_round_emits_ends_the_text_too(make) -> None:
    """The last token of a round may be another, when the stop was drafted and accepted."""
    worker = make()
    table = worker.session.table
    stop = int(table[1, 2].argmax())
    bonus = int(table[2, stop].argmax())
    assert bonus != stop
    join(worker, LEASES[0], [1, 2], stop_ids=frozenset([stop]))
    worker.mailbox.propose(0, 1, Kind.HIT, (stop,))
    worker.verify()
    assert outcome(worker, 0) == (Kind.HIT, [stop, bonus])
    worker.verify(0)
    assert outcome(worker, 0)[0] == Kind.SKIP


def test_proposals_of_another_round_are_not_looked_at(make) -> None:
    """In a plain round the draft may be writing them."""
    worker = make()
    start(worker, 5)
    worker.mailbox.propose(0, 1, Kind.HIT, (1, 2, 3))
    sent = worker.mailbox.outcomes.array.copy()
    worker.verify(0, 1, sends=False)
    assert worker.session.widths == [1]
    np.testing.assert_array_equal(worker.mailbox.outcomes.array, sent)
    worker.mailbox.propose(0, 1, Kind.SKIP)
    worker.verify(0, 0, sends=False)
    assert worker.mailbox.read(0).rows[0][mail.KIND] == Kind.NONE


def test_rows_with_other_numbers_of_drafts_get_what_they_get_alone(make) -> None:
    """Each row has its own num_draft."""
    drafts = [(), (2, 3), (4,)]
    alone = []
    for row in range(BATCH):
        worker = make()
        join(worker, LEASES[0], [1, 2, 3], PARAMS[row])
        worker.mailbox.propose(0, 1, Kind.HIT, drafts[row])
        worker.verify()
        alone.append(outcome(worker, 0))
    together = make()
    for row in range(BATCH):
        join(together, LEASES[row], [1, 2, 3], PARAMS[row])
        together.mailbox.propose(row, 1, Kind.HIT, drafts[row])
    together.verify()
    assert [outcome(together, row) for row in range(BATCH)] == alone


def test_after_a_reset_a_text_pays_for_its_own_rows_alone(make) -> None:
    """Every call pays for each bound row, so a short text must not inherit a long one's."""
    worker = make()
    start(worker, 190)
    worker.verify()
    start(worker, 5)
    worker.verify()
    (step,) = [worker.session.prepare(shape) for shape in worker.session.shapes]
    assert step.mask.shape[-1] == worker.session.manifest.lengths[0]


def test_prompts_of_all_lengths_share_a_few_call_shapes(make) -> None:
    """Each shape is prepared, and kept, once: a shape a length would never stop growing."""
    worker = make()
    widths = set()
    for length in range(2, 150):
        worker.session.shapes = []
        worker.reset()
        join(worker, LEASES[0], [1] * length)
        widths |= set(worker.session.widths)
    assert widths == {16, 32, 48, 64}


def test_log_probabilities_are_those_of_the_emitted_tokens_alone(make) -> None:
    """L1, L2: one entry for every token of a block, of the rows that ask."""
    worker = make()
    worker.reset()
    join(worker, LEASES[0], [1, 2], num_logprobs=2)
    join(worker, LEASES[1], [1, 2])
    table = worker.session.table
    first = int(table[1, 2].argmax())
    worker.mailbox.propose(0, 1, Kind.HIT, (first, (int(table[2, first].argmax()) + 1) % 12))
    worker.verify()
    worker.score()
    _, emitted = outcome(worker, 0)
    assert len(emitted) == 2
    for logits, token, entry in zip(
        (table[1, 2], table[2, first]), emitted, worker.mailbox.logprobs[0][0], strict=True
    ):
        law = np.exp(logits.astype(np.float64)) / np.exp(logits.astype(np.float64)).sum()
        assert entry.logprob == pytest.approx(np.log(law[token]), abs=1e-5)
        assert entry.top_ids.tolist() == np.argsort(-law)[:2].tolist()
    assert worker.mailbox.logprobs[0][1] == []


def test_a_greedy_row_with_a_ban_is_judged_by_the_rule_until_it_is_lifted(make) -> None:
    """The engine's own argmax knows of no ban: it emitted the stop token that had none."""
    worker = make()
    table = worker.session.table
    best = int(table[1, 2].argmax())
    banned = SamplingParams(banned_ids=(best,), banned_before=3)
    join(worker, LEASES[0], [1, 2], banned)
    worker.verify()
    second = int(np.argsort(-table[1, 2])[1])
    assert outcome(worker, 0)[1] == [second]
    worker.verify()
    assert outcome(worker, 0)[1] == [int(table[2, second].argmax())]


def test_logits_that_are_no_numbers_are_an_error_not_a_text(make) -> None:
    """Damaged weights gave token 0 for ever: an answer of nothing, and exit code 0."""
    worker = make()
    start(worker, 5)
    worker.session.table[:] = float("nan")
    with pytest.raises(BackendError, match="weights are damaged"):
        worker.verify()


def test_more_drafts_than_the_engine_was_built_for_are_refused_by_name() -> None:
    """G11, E14: K = 8 on an engine of K = 3 ends before the first call."""
    device = HostDevice()
    session = ToySession(TARGET, tables(0)[0], Limits(MAX_LEN, BATCH, K, 1), device)
    with pytest.raises(CapacityError, match=r"built for 3.*--num-draft 8"):
        TargetWorker(session, rule("coupled"), Mailbox(device, BATCH, 8))
    device.close()
