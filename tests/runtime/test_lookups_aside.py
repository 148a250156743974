"""Rounds of lookups beside a loaded draft: it rests, and may fail, without costing a token."""

from __future__ import annotations

import pytest

from engines.errors import DeviceError
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.request import Request
from runtime.round import draft_side, target_side
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from runtime.spec.drafter import Drafter
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.policies import Scripted
from tests.helpers.toy_pair import ToyPair, plain

K, W = 3, 6
LOOKUP = RoundPlan("sd", K, drafter=Drafter.LOOKUP)
SSD = RoundPlan("ssd", K, W)
TEXTS = [([1, 2] * 20, 20), ([4, 5], 44), ([6, 7, 8] * 3, 9), ([9], 60), ([1, 2] * 20, 12)]
PARAMS = SamplingParams(temperature=0.8, seed=5)


def open_pair(device, plans, **options) -> ToyPair:
    policy = Scripted(plans, K, W, once=True)
    sizes = {"num_draft": K, "num_branches": W, "max_batch": 3, "max_len": 160}
    return ToyPair(device, "ssd", policy=policy, **sizes, **options)


def check(pair: ToyPair) -> None:
    requests = [Request(prompt, PARAMS, num, frozenset([11]), 160) for prompt, num in TEXTS]
    pair.scheduler.run(requests)
    for request, (prompt, num) in zip(requests, TEXTS, strict=True):
        alone = plain(pair.target_session.table, Request(prompt, PARAMS, num, frozenset([11]), 160))
        assert request.generated == alone.generated


@pytest.mark.parametrize("device", [lambda: HostDevice(check=True), lambda: SeededDevice(lazy)])
def test_the_draft_is_told_nothing_of_such_rounds(device, monkeypatch) -> None:
    """Or each would wait for its stream twice."""
    pair = open_pair(device(), [LOOKUP])
    for name in ("draft", "follow", "prepare", "adopt"):
        monkeypatch.setattr(pair.draft, name, lambda *_: pytest.fail("the draft was asked"))
    check(pair)
    pair.device.close()


@pytest.mark.parametrize("device", [lambda: HostDevice(check=True), lambda: SeededDevice(eager)])
def test_texts_join_move_and_leave_between_such_rounds_and_others(device) -> None:
    """The order checker sees both writers of the proposals."""
    plans = [SSD, SSD, LOOKUP, LOOKUP, PLAIN, LOOKUP, RoundPlan("sd", K), LOOKUP, SSD] * 12
    pair = open_pair(device(), plans)
    check(pair)
    check(pair)  # the first round follows one of lookups that nobody has resumed from
    pair.device.close()


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize(("work", "number"), [("adopt", 3), ("resume", 0), ("prompt", 1)])
def test_a_draft_that_fails_before_or_during_them_is_given_up(work: str, number: int) -> None:
    fault = Fault("draft", work, number)
    device = FaultyDevice(HostDevice(check=True), [fault])
    pair = open_pair(device, [SSD] * 4 + [LOOKUP] * 30 + [SSD], draft_timeout_s=1.0)
    check(pair)
    assert f"the draft failed ('{work}' on 'draft' failed" in (pair.scheduler.note or "")
    check(pair)
    pair.device.close()


def test_they_are_refused_where_none_were_loaded() -> None:
    pair = ToyPair(SeededDevice(0), "sd", num_draft=K)
    near = target_side(pair.device.create_stream("another target"), pair.target)
    far = draft_side(pair.device.create_stream("another draft"), pair.draft)
    policy = Scripted([LOOKUP], K, W)
    scheduler = Scheduler(pair.device, "sd", near, far, max_batch=1, policy=policy)
    with pytest.raises(DeviceError, match="loaded without them"):
        scheduler.run([Request([1], PARAMS, 5, frozenset(), 96)])
    pair.device.close()
