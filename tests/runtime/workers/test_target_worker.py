"""The calls the target's side makes; what they answer is the exactness tests' business."""

from __future__ import annotations

import pytest

from engines.errors import BackendError
from engines.manifest import TARGET, Limits
from runtime.backends.api import CallShape
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams
from runtime.spec.outcome import Outcome
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker
from tests.helpers.toy_pair import tables

BATCH, K = 2, 3
PARAMS = [SamplingParams(), SamplingParams(temperature=1.0, seed=5)]


class Recorded(ToySession):
    """Notes the shapes of the calls that are prepared."""

    def prepare(self, shape: CallShape):
        self.shapes = [*getattr(self, "shapes", []), shape]
        return super().prepare(shape)


@pytest.fixture
def make():
    device = HostDevice()

    def worker(**options) -> TargetWorker:
        session = Recorded(TARGET, tables(0)[0], Limits(200, BATCH, K, 1), device)
        return TargetWorker(session, rule("coupled"), Mailbox(device, BATCH, K), **options)

    yield worker
    device.close()


def start(worker: TargetWorker, *lengths: int) -> None:
    worker.start([[1] * length for length in lengths], PARAMS[: len(lengths)])
    worker.session.shapes.clear()


def decided(worker: TargetWorker) -> list[Outcome]:
    return [worker.mailbox.outcome(row) for row in range(len(worker.rows))]


def test_an_engine_that_rounds_single_tokens_differently_never_gets_one(make) -> None:
    """The probe found that plain decoding would differ from verification there."""
    plain, padded = make(), make(min_tokens=2)
    for worker in (plain, padded):
        start(worker, 5, 9)
        for _ in range(4):
            worker.verify()
    assert [shape.num_tokens for shape in plain.session.shapes] == [1] * 4
    assert [shape.num_tokens for shape in padded.session.shapes] == [2] * 4
    assert decided(padded) == decided(plain)


def test_a_row_that_has_ended_does_not_widen_the_calls_of_the_others(make) -> None:
    worker = make()
    start(worker, 5, 9)
    worker.mailbox.propose(0, (1, 2, 3), None)
    worker.verify()
    worker.retire(0)
    worker.verify()
    assert [shape.num_tokens for shape in worker.session.shapes] == [1 + K, 1]


def test_a_row_that_has_ended_is_not_judged(make) -> None:
    worker = make()
    start(worker, 5, 9)
    worker.verify()
    before = decided(worker)[0]
    worker.retire(0)
    worker.mailbox.decide(0, (), Outcome(0, 99))
    worker.verify()
    assert decided(worker)[0] == Outcome(0, 99) != before


def test_rows_with_other_numbers_of_drafts_get_what_they_get_alone(make) -> None:
    alone = []
    for row, drafts in enumerate([(), (2, 3)]):
        worker = make()
        worker.start([[1, 2, 3]], [PARAMS[row]])
        worker.mailbox.propose(0, drafts, None)
        worker.verify()
        alone += decided(worker)
    together = make()
    together.start([[1, 2, 3]] * 2, PARAMS)
    together.mailbox.propose(1, (2, 3), None)
    together.verify()
    assert decided(together) == alone


def test_a_new_batch_pays_for_its_own_rows_alone(make) -> None:
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
        worker.start([[1] * length], PARAMS[:1])
        widths |= {shape.num_tokens for shape in worker.session.shapes}
    assert widths == {16, 32, 48, 64}


def test_logits_that_are_no_numbers_are_an_error_not_a_text(make) -> None:
    """Damaged weights gave token 0 for ever: an answer of nothing, and exit code 0."""
    worker = make()
    start(worker, 5)
    worker.session.table[:] = float("nan")
    with pytest.raises(BackendError, match="weights are damaged"):
        worker.verify()
