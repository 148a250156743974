"""What becomes of those that were on their way when a step failed."""

from __future__ import annotations

import pytest

from runtime.device.seeded import SeededDevice
from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams
from runtime.ticket import Ticket
from tests.helpers.toy_pair import ToyPair


class ListenerError(Exception):
    """Of a caller's own code."""


def asked(num_tokens: int) -> Request:
    return Request([1, 2], SamplingParams(), num_tokens, frozenset(), 90)


def run(pair: ToyPair) -> None:
    while pair.scheduler.step():
        pass


def test_one_that_was_queued_meanwhile_is_told_that_it_is_over() -> None:
    """It began with the next step, for nobody."""
    pair = ToyPair(SeededDevice(0), "ar", max_batch=2)
    late: list[Ticket] = []

    def fail(_tokens: list[int]) -> None:
        late.append(pair.scheduler.submit(asked(5)))
        raise ListenerError

    pair.scheduler.submit(asked(9), fail)
    with pytest.raises(ListenerError):
        run(pair)
    [ticket] = late
    assert ticket.done
    assert ticket.request.finish_reason is FinishReason.CANCELLED
    assert not pair.scheduler.step()
    assert ticket.request.generated == []


def test_one_that_ended_in_that_step_is_told_so() -> None:
    """Whoever waits for it waited for ever."""
    pair = ToyPair(SeededDevice(0), "ar", max_batch=2)

    def fail(_tokens: list[int]) -> None:
        if bad.request.finish_reason is not None:
            raise ListenerError

    bad = pair.scheduler.submit(asked(4), fail)
    good = pair.scheduler.submit(asked(3))
    with pytest.raises(ListenerError):
        run(pair)
    assert (bad.done, good.done) == (True, True)
    assert good.request.finish_reason is FinishReason.LENGTH
