"""Texts of toy pairs, run to their end or step by step."""

from __future__ import annotations

from runtime.request import Request
from runtime.sampling.params import SamplingParams
from tests.helpers.toy_pair import ToyPair

GREEDY = SamplingParams()


def tokens_of(pair: ToyPair, prompt=(1, 2), **options) -> list[int]:
    return pair.generate([prompt], [GREEDY], **options)[0][0].generated


def interrupt(*_args: object) -> None:
    raise KeyboardInterrupt


def drive(pair: ToyPair, *tickets) -> None:
    while not all(ticket.done for ticket in tickets):
        pair.scheduler.step()


def request_of(pair: ToyPair, prompt=(1, 2), params=GREEDY, max_tokens=24, **options) -> Request:
    return Request(prompt, params, max_tokens, frozenset(), pair.max_len, **options)
