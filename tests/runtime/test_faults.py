"""Work that fails or hangs, of every kind and on either side: what is lost, and what is not."""

from __future__ import annotations

import logging
import random
from threading import Timer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import BackendError
from runtime.backends.faulty import FaultySession
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.request import FinishReason, Request
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN
from tests.helpers.faulty_pair import (
    PARAMS,
    SOON_S,
    SSD,
    K,
    W,
    check_texts,
    finish,
    open_pair,
    requests_of,
    run_all,
)
from tests.helpers.policies import Scripted
from tests.helpers.toy_pair import ToyPair, plain

DRAFT_WORK = (
    "reset", "admit", "prompt", "draft", "follow", "prepare", "adopt", "commit", "move", "retire",
    "resume", "catch up", "shift", "share",
)  # fmt: skip
TARGET_WORK = ("reset", "admit", "prompt", "verify", "score", "move", "retire", "shift", "share")


def check_degraded(pair: ToyPair, policy: Scripted, words: str) -> None:
    """It is said why, once, and what comes later works without the draft."""
    assert pair.scheduler.note is not None
    assert words in pair.scheduler.note
    assert "\n" not in pair.scheduler.note
    pair.scheduler.run([Request([1], PARAMS[0], 4, frozenset(), pair.max_len)])
    assert policy.reasons == [pair.scheduler.note]
    assert len(policy.reports) == len(policy.asked)
    assert not any(row.num_drafted for report in policy.reports[-3:] for row in report.rows)


DEVICES = {
    "host": lambda: HostDevice(check=True),
    "seeded-eager": lambda: SeededDevice(eager),
    "seeded-lazy": lambda: SeededDevice(lazy),
    "seeded-7": lambda: SeededDevice(7),
}


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("how", ["fails", "fails late", "hangs"])
@pytest.mark.parametrize("label", DRAFT_WORK)
@pytest.mark.parametrize("name", DEVICES)
def test_without_its_draft_a_pair_goes_on_with_the_same_tokens(name, label, how, caplog) -> None:
    """6.7: whatever the draft was at, in the first such work or a later one."""
    for number in (0, 2):
        caplog.clear()
        fault = Fault("draft", label, number, late=how == "fails late", stalls=how == "hangs")
        pair, policy = open_pair(DEVICES[name](), fault)
        try:
            for _ in range(2):
                check_texts(pair, run_all(pair))
            assert fault.has_struck or number, f"{label} was never done"
            if fault.has_struck:
                check_degraded(pair, policy, "not answered" if fault.stalls else "as it was told")
                lines = [each for each in caplog.records if each.levelno == logging.WARNING]
                assert len(lines) == 1
        finally:
            pair.device.close()


@pytest.mark.parametrize("label", TARGET_WORK)
@pytest.mark.parametrize("name", DEVICES)
def test_without_its_target_a_pair_says_so_and_frees_its_slots(name, label) -> None:
    """The draft's time limit must not make a draft's fault of it."""
    # Of these there is one in a run.
    fault = Fault("target", label, 0 if label in ("reset", "shift", "share") else 1)
    pair, _ = open_pair(DEVICES[name](), fault)
    with pytest.raises(BackendError, match="as it was told to"):
        run_all(pair)
    assert fault.has_struck
    assert pair.scheduler.num_free == 3
    assert pair.scheduler.note is None
    for _ in range(2):
        with pytest.raises(BackendError, match=r"open the bundle again.*as it was told to"):
            run_all(pair)
    pair.device.close()
    pair.device.close()


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("name", DEVICES)
def test_a_draft_that_is_lost_while_it_catches_up_costs_no_decided_round(name, how) -> None:
    """Rounds go on meanwhile: one is under way, perhaps judged and not read yet, when the target
    gets its new stream."""
    fault = Fault("draft", "catch up", 1, stalls=how == "hangs")
    policy = Scripted([PLAIN] * 9 + [SSD], K, W, once=True)
    pair = ToyPair(
        FaultyDevice(DEVICES[name](), [fault]),
        "ssd",
        num_draft=K,
        num_branches=W,
        max_len=400,
        policy=policy,
        draft_timeout_s=60.0 if how == "fails" else SOON_S if name == "host" else 0.0,
    )
    pair.generate([[1]], PARAMS[:1], max_tokens=3)
    request = Request([1, 2, 3] * 80, PARAMS[1], 100, frozenset(), 400, num_logprobs=1)
    ticket = pair.scheduler.submit(request)
    finish(pair)
    twin = Request([1, 2, 3] * 80, PARAMS[1], 100, frozenset(), 400, num_logprobs=1)
    assert ticket.request.generated == plain(pair.target_session.table, twin).generated
    pair.generate([[2]], PARAMS[:1], max_tokens=3)  # begins on idle streams, so by now it is known
    assert fault.has_struck
    assert pair.scheduler.note is not None
    assert len(policy.reports) == len(policy.asked)
    pair.device.close()


@pytest.mark.usefixtures("may_degrade")
@given(
    device=st.one_of(
        st.sampled_from([lambda: SeededDevice(lazy), lambda: SeededDevice(eager)]),
        st.integers(0, 2**32).map(lambda seed: lambda: SeededDevice(random.Random(seed))),
    ),
    label=st.sampled_from(DRAFT_WORK),
    number=st.integers(0, 12),
    late=st.booleans(),
    stalls=st.booleans(),
    cancelled=st.integers(0, 30),
)
def test_wherever_the_draft_is_lost(device, label, number, late, stalls, cancelled) -> None:
    """In any interleaving, with a text that is cancelled at about the same time."""
    pair, policy = open_pair(device(), Fault("draft", label, number, late=late, stalls=stalls))
    requests = requests_of(pair)
    tickets = [pair.scheduler.submit(request) for request in requests]
    for _ in range(cancelled):
        pair.scheduler.step()
    pair.scheduler.cancel(tickets[1])
    while pair.scheduler.step():
        pass
    for ticket, request in zip(tickets, requests_of(pair), strict=True):
        alone = plain(pair.target_session.table, request).generated
        found = ticket.request
        assert ticket.done
        if found.finish_reason is FinishReason.CANCELLED:
            alone = alone[: len(found.generated)]
        assert found.generated == alone
    assert pair.scheduler.num_free == 3
    assert len(policy.reports) == len(policy.asked)
    pair.device.close()


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
@pytest.mark.parametrize("call", [0, 1, 2, 5, 9, 20])
@pytest.mark.parametrize("verify", ["coupled", "ratio"])
def test_an_engine_call_of_the_draft_that_fails_or_hangs(call, hangs, verify) -> None:
    """In the middle of a piece of work: half of what it writes is there."""
    sessions: list[FaultySession] = []

    def wrap(session):
        is_draft = session.manifest.role == "draft"
        sessions.append(FaultySession(session, call if is_draft else 10**9, hangs=hangs))
        return sessions[-1]

    device = HostDevice(check=True)
    pair = ToyPair(
        device,
        "ssd",
        num_draft=K,
        num_branches=W,
        max_batch=3,
        max_len=160,
        verify=verify,
        fallback=Fallback.JIT,
        draft_timeout_s=SOON_S,
        wrap=wrap,
    )
    try:
        requests = run_all(pair)
        assert sessions[1].has_struck
        assert pair.scheduler.note is not None
        if verify == "coupled":
            check_texts(pair, requests)
        else:  # which tokens depends on the drafts, but greedy ones are the target's
            greedy = zip(requests[::3], requests_of(pair)[::3], strict=True)
            for found, request in greedy:
                assert found.generated == plain(pair.target_session.table, request).generated
    finally:
        for session in sessions:
            session.close()
        device.close()


def test_a_draft_that_is_only_slow_is_not_given_up() -> None:
    """It is never at one piece of work for long, and a target that is slow is not its fault."""
    device = HostDevice()
    pair = ToyPair(device, "ssd", max_batch=2, draft_timeout_s=30.0)
    requests, stats = pair.generate([[1, 2] * 30, [3]], PARAMS[:2], max_tokens=30)
    device.close()
    assert pair.scheduler.note is None
    assert stats.num_accepted > 0
    assert len(requests[0].generated) == 30


def test_a_hanging_target_is_not_the_drafts_fault() -> None:
    """It holds everybody up, the draft included, for longer than the limit."""
    fault = Fault("target", "verify", 3, stalls=True)
    pair, _ = open_pair(HostDevice(), fault)
    ticket = pair.scheduler.submit(requests_of(pair)[0])
    for _ in range(3):
        pair.scheduler.step()
    timer = Timer(6 * SOON_S, fault.release)
    timer.start()
    while pair.scheduler.step():
        pass
    timer.join()
    assert ticket.done
    assert pair.scheduler.note is None
    pair.device.close()


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("name", DEVICES)
def test_a_draft_that_is_lost_beside_a_prompt_does_not_hold_up_its_text(name, number, how) -> None:
    """Another text ends meanwhile, and nobody reads the rounds that it leaves under way: they are
    on the stream that goes with the draft."""
    fault = Fault("draft", "adopt", number, stalls=how == "hangs")
    pair, _ = open_pair(DEVICES[name](), fault, max_len=600)
    short = Request([1], PARAMS[0], number + 1, frozenset(), 600)
    long = Request([1, 2, 3] * 180, PARAMS[0], 20, frozenset(), 600)
    pair.scheduler.run([short, long])
    assert fault.has_struck
    twin = Request([1, 2, 3] * 180, PARAMS[0], 20, frozenset(), 600)
    assert long.generated == plain(pair.target_session.table, twin).generated
    assert pair.scheduler.note is not None
    pair.device.close()


def test_a_stall_ends_quietly_where_its_stream_has_gone() -> None:
    """Closing a device with two faults in it raised, since one had closed the other's stream."""
    device = FaultyDevice(SeededDevice(eager), [Fault("draft", "work", stalls=True)])
    stream = device.create_stream("draft")
    stream.launch(lambda: None, label="work")
    stream.close()
    device.close()
