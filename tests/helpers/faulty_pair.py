"""A toy pair on a device with a fault in it, and the texts that it is given.

Without the draft the same tokens come, more slowly. Without the target nothing comes, but nothing
hangs, no slot stays taken, and who asks is told.
"""

from __future__ import annotations

import itertools

from runtime.device.faulty import Fault, FaultyDevice
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.policies import Scripted
from tests.helpers.toy_pair import ToyPair, plain

K, W = 3, 6
SD, SSD = RoundPlan("sd", K), RoundPlan("ssd", K, W, Fallback.JIT)
PARAMS = [SamplingParams(), SamplingParams(temperature=0.8, seed=5), SamplingParams()]
# In turn, so that every kind of work is done: joins, moves, rests, both ways of drafting, and texts
# that begin as another one that runs, or has ended.
TEXTS = [
    ([1, 2] * 40, 30, None),
    ([1, 2] * 40 + [3], 9, 2),
    ([4, 5], 44, None),
    ([6, 7, 8], 25, 1),
    ([9], 60, 0),
    ([1, 2] * 20 + [4] * 20, 12, None),
]
# Only a broken test waits so long.
SOON_S = 0.05


def open_pair(device, fault: Fault, **options) -> tuple[ToyPair, Scripted]:
    policy = Scripted([SSD] * 4 + [SD] * 3 + [PLAIN] * 4, K, W)
    options = {"max_batch": 3, "max_len": 160, "draft_timeout_s": SOON_S} | options
    pair = ToyPair(
        FaultyDevice(device, [fault]),
        "ssd",
        num_draft=K,
        num_branches=W,
        policy=policy,
        **options,
    )
    return pair, policy


def requests_of(pair: ToyPair) -> list[Request]:
    return [
        Request(prompt, params, length, frozenset([11]), pair.max_len, num_logprobs=logprobs)
        for (prompt, length, logprobs), params in zip(TEXTS, itertools.cycle(PARAMS), strict=False)
    ]


def run_all(pair: ToyPair) -> list[Request]:
    """All texts, some of which join later; in the end nothing is under way."""
    handed: list[list[int]] = [[] for _ in TEXTS]
    tickets = []
    for request, tokens in zip(requests_of(pair), handed, strict=True):
        tickets.append(pair.scheduler.submit(request, tokens.extend))
        for _ in range(3):
            pair.scheduler.step()
    finish(pair)
    assert all(ticket.done for ticket in tickets)
    assert pair.scheduler.num_free == 3
    assert [ticket.request.generated for ticket in tickets] == handed
    return [ticket.request for ticket in tickets]


def finish(pair: ToyPair) -> None:
    while pair.scheduler.step():
        pass


def check_texts(pair: ToyPair, requests: list[Request]) -> None:
    for found, request in zip(requests, requests_of(pair), strict=True):
        alone = plain(pair.target_session.table, request)
        assert found.generated == alone.generated
        assert found.finish_reason is alone.finish_reason
        assert [each.logprob for each in found.logprobs] == [
            each.logprob for each in alone.logprobs
        ]
