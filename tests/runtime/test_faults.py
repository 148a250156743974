"""Work that fails or hangs, of every kind and on either side: what is lost, and what is not.

Without the draft the same tokens come, more slowly. Without the target nothing comes, but nothing
hangs, no slot stays taken, and who asks is told.
"""

from __future__ import annotations

import itertools
import logging
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Timer
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import BackendError, DeviceError
from runtime.backends.faulty import FaultySession
from runtime.device.api import Stream
from runtime.device.cores import available_cores
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.llm import LLM
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams
from runtime.settings import Settings
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.policies import Scripted
from tests.helpers.tiny_bundle import tiny_bundle
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
DRAFT_WORK = (
    "reset", "admit", "prompt", "draft", "follow", "prepare", "adopt", "commit", "move", "retire",
    "resume", "catch up", "shift", "share",
)  # fmt: skip
TARGET_WORK = ("reset", "admit", "prompt", "verify", "score", "move", "retire", "shift", "share")
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


class _CtrlC:
    """Raises KeyboardInterrupt before the ``number``-th line (from 0) that functions of these names
    run, under ``sys.settrace``."""

    def __init__(self, names: Sequence[str], number: int) -> None:
        self.has_struck = False
        self._names = names
        self._left = number

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Callable[..., object] | None:
        if frame.f_code.co_name not in self._names:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.has_struck = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("label", ["prepare", "follow"])
def test_ctrl_c_while_the_draft_is_given_up_leaves_a_pair_that_works(label, how) -> None:
    """At any line of it: one of the streams is closed then, and not yet made anew."""
    for number in itertools.count():
        fault = Fault("draft", label, 1, stalls=how == "hangs")
        pair, _ = open_pair(SeededDevice(eager), fault)
        stroke = _CtrlC(("_give_up", "_salvage"), number)
        before = sys.gettrace()
        sys.settrace(stroke)
        try:
            with suppress(KeyboardInterrupt):
                run_all(pair)
        finally:
            sys.settrace(before)
        assert pair.scheduler.num_free == 3
        check_texts(pair, run_all(pair))
        assert pair.scheduler.note is not None
        pair.device.close()
        if not stroke.has_struck:
            assert number > 20, "it has become shorter, or has another name"
            break


@pytest.mark.parametrize(
    "error", [DeviceError("it is in the middle of its work"), KeyboardInterrupt]
)
def test_no_stream_is_made_beside_one_that_could_not_be_closed(error, monkeypatch) -> None:
    """What runs on it would write to the same caches. The pair is lost then, and says so."""
    pair, _ = open_pair(SeededDevice(eager), Fault("draft", "prepare", 1))
    stream = type(pair.device.create_stream("other"))
    close = stream.close

    def refuse(each: Stream) -> None:
        close(each)
        if each.name == "target":
            raise error

    monkeypatch.setattr(stream, "close", refuse)
    monkeypatch.setattr(FaultyDevice, "create_stream", lambda *_: pytest.fail("a second one"))
    with pytest.raises((DeviceError, KeyboardInterrupt)):
        run_all(pair)
    for _ in range(2):
        with pytest.raises(BackendError, match="open the bundle again"):
            run_all(pair)
    assert pair.scheduler.num_free == 3
    monkeypatch.undo()
    pair.device.close()


def test_ctrl_c_between_two_steps_ends_a_run_like_one_within_a_step(monkeypatch) -> None:
    """Slots stayed taken by texts that nobody waited for any more."""
    pair, _ = open_pair(SeededDevice(eager), Fault("draft", "nothing"))
    step = pair.scheduler.step

    def interrupted() -> bool:
        step()
        raise KeyboardInterrupt

    monkeypatch.setattr(pair.scheduler, "step", interrupted)
    requests = requests_of(pair)
    with pytest.raises(KeyboardInterrupt):
        pair.scheduler.run(requests)
    assert pair.scheduler.num_free == 3
    assert {each.finish_reason for each in requests} == {FinishReason.CANCELLED}
    monkeypatch.undo()
    check_texts(pair, run_all(pair))
    pair.device.close()


def interrupt(_tokens: list[int]) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("label", ["prepare", "adopt", "prompt"])
def test_ctrl_c_while_the_draft_hangs_leaves_a_pair_that_works(label) -> None:
    """Draining the streams must not wait for it for ever."""
    fault = Fault("draft", label, 1 if label == "prompt" else 3, stalls=True)
    pair, _ = open_pair(HostDevice(check=True), fault)
    for request in requests_of(pair)[1:3]:
        pair.scheduler.submit(request, interrupt)
    with pytest.raises(KeyboardInterrupt):
        finish(pair)
    assert pair.scheduler.num_free == 3
    for _ in range(2):
        check_texts(pair, run_all(pair))
    assert pair.scheduler.note is not None
    pair.device.close()


def faulty_llm(mode: str, fault: Fault, *, limit_s: float, close_timeout_s: float = 10.0) -> LLM:
    """As ``LLM.open`` makes it, on a device with a fault in it."""
    bundle, cores = tiny_bundle(max_batch=1), available_cores()
    placement = Placement(mode, cores[:1], cores[-1:])
    settings = Settings(placement, "coupled", K, W, 1, Fallback.ZERO, 1.0, None)
    pair = LoadedPair(
        bundle,
        placement,
        verify="coupled",
        num_draft=K,
        num_branches=W,
        device=FaultyDevice(HostDevice(close_timeout_s=close_timeout_s), [fault]),
        draft_timeout_s=limit_s,
    )
    return LLM(bundle, pair, settings, None)


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_an_llm_says_that_it_lost_its_draft_and_answers_on(hangs) -> None:
    """Real engines: the target's stream is made anew under them."""
    fault = Fault("draft", "prepare", 3, stalls=hangs)
    with faulty_llm("ar", Fault("draft", "nothing"), limit_s=1.0) as plain_llm:
        expected = plain_llm.generate([5, 6, 7], PARAMS[1], max_tokens=40).token_ids
    with faulty_llm("ssd", fault, limit_s=1.0) as llm:
        assert llm.note is None
        answer = llm.generate([5, 6, 7], PARAMS[1], max_tokens=40)
        assert answer.token_ids == expected
        assert fault.has_struck
        assert "decoding goes on without it" in answer.note
        assert llm.note == answer.note
        assert llm.generate([5, 6, 7], PARAMS[1], max_tokens=40).token_ids == expected


@pytest.mark.usefixtures("may_degrade")
def test_closing_an_llm_whose_draft_hangs_is_no_error(monkeypatch) -> None:
    """It was told once that the draft is gone; closing frees the rest."""
    monkeypatch.setattr(Fault, "release", lambda _self: None)
    fault = Fault("draft", "prepare", 3, stalls=True)
    llm = faulty_llm("ssd", fault, limit_s=SOON_S, close_timeout_s=SOON_S)
    assert len(llm.generate([5, 6, 7], max_tokens=20).token_ids) == 20
    llm.close()
    llm.close()
    monkeypatch.undo()
    fault.release()
