"""Why a text ended, where two reasons come together."""

from __future__ import annotations

import pytest

from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams

STOP = 9


class Failing:
    """A grammar's state, of which only its failure is asked here."""

    def __init__(self, failure: str | None) -> None:
        self.failure = failure

    def allowed(self, vocab_size: int) -> None:
        raise NotImplementedError

    def take(self, token: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(None, FinishReason.STOP), ("no token fits", FinishReason.GRAMMAR)],
)
def test_a_text_that_its_grammar_ended_early_did_not_stop_by_itself(
    failure: str | None, reason: FinishReason
) -> None:
    """Both end with the model's own end of sequence: half a JSON would pass for a whole one."""
    request = Request([1], SamplingParams(), 9, frozenset({STOP}), 99, constraint=Failing(failure))
    request.commit([5, STOP])
    assert (request.generated, request.finish_reason) == ([5], reason)


class Late:
    """A stop string that is complete only where the text ends: with half a character, say."""

    num_certain = 0

    def push(self, token: int) -> None:
        """None of these tokens completes it."""

    def flush(self) -> int:
        return 1


def test_a_stop_string_that_the_end_completes_takes_the_place_of_the_stop_token() -> None:
    """The caller was told of a token that the text does not reach."""
    request = Request([1], SamplingParams(), 9, frozenset({STOP}), 99, stop=Late())
    assert request.commit([5, 6, STOP]) == [5]
    assert (request.generated, request.stop_token) == ([5], None)
    assert request.finish_reason is FinishReason.STOP
