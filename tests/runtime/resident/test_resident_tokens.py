"""Losslessness of resident pairs: rounds in device memory give plain decoding's tokens.

Kernels run in their host form, and the toy engine refuses a call whose mask, rows or positions are
not exactly right, of dummies and padding too.
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.comers import decode_as_they_come
from tests.helpers.policies import Scripted
from tests.helpers.resident_pair import ResidentPair
from tests.helpers.toy_pair import VOCAB, plain

K, W = 4, 8
SD, SSD = RoundPlan("sd", K), RoundPlan("ssd", K, W)
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=7)
DEVICES = st.one_of(
    st.just(lambda: SeededDevice(lazy)),
    st.just(lambda: SeededDevice(eager)),
    st.just(lambda: HostDevice(check=True)),
    st.integers(0, 2**32).map(lambda seed: lambda: SeededDevice(random.Random(seed))),
)
PLANS = st.builds(
    RoundPlan,
    mode=st.sampled_from(["ar", "sd", "ssd", "ssd", "ssd"]),
    num_draft=st.integers(1, K),
    num_branches=st.integers(1, W),
)
LAWS = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.0, 1.3]),
        top_k=st.sampled_from([0, 0, 1, 4]),
        top_p=st.sampled_from([1.0, 1.0, 0.8]),
        min_p=st.sampled_from([0.0, 0.0, 0.1]),
        seed=st.integers(0, 2**64 - 1),
    ),
)
TEXTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda tokens, times: tokens * times,
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
            st.sampled_from([1, 1, 3, 20, 50]),
        ),
        "params": LAWS,
        "max_tokens": st.integers(1, 50),
        "stop_ids": st.sampled_from([(), (), (3,), (3, 7)]).map(frozenset),
        "num_logprobs": st.sampled_from([None, None, None, 0, 2]),
    }
)


def run(pair: ResidentPair, texts: list, cancelled: int | None = None) -> list:
    tickets = decode_as_they_come(pair.scheduler, pair.max_len, texts, cancelled)
    pair.device.close()
    return tickets


def check(pair: ResidentPair, tickets: list) -> None:
    """What came is what plain decoding gives, log-probabilities too."""
    for ticket, handed, options in tickets:
        alone = plain(pair.table, Request(max_len=pair.max_len, **options))
        request = ticket.request
        assert ticket.done
        assert handed == request.generated
        if request.finish_reason is FinishReason.CANCELLED:
            assert handed == alone.generated[: len(handed)]
            continue
        assert handed == alone.generated
        assert request.finish_reason is alone.finish_reason
        assert request.logprobs == alone.logprobs
    assert pair.scheduler.num_free == len(pair.target.ledger.rows)


@settings(deadline=None)
@given(
    device=DEVICES,
    mode=st.sampled_from(["ar", "sd", "ssd", "ssd", "ssd"]),
    texts=st.lists(st.tuples(TEXTS, st.integers(0, 12)), min_size=1, max_size=6),
    max_batch=st.integers(1, 4),
    num_draft=st.integers(1, 5),
    num_branches=st.integers(1, 9),
    spare_branches=st.integers(0, 3),
    agreement=st.sampled_from([0.1, 2.0, 1e6]),
    draft_vocab=st.sampled_from([None, None, 5, 9]),
    draft_knows=st.sampled_from([None, None, 10]),
    min_tokens=st.sampled_from([1, 2]),
    cancelled=st.none() | st.integers(0, 30),
)
def test_every_mode_gives_plain_decodings_tokens(
    work, device, mode, texts, cancelled, num_branches, spare_branches, **options
) -> None:
    """With texts that join and leave at any round, and engines built for more branches."""
    pair = ResidentPair(
        device(),
        mode,
        work=work,
        num_branches=num_branches,
        built_branches=num_branches + spare_branches,
        max_len=260,
        **options,
    )
    check(pair, run(pair, texts, cancelled))


@settings(deadline=None)
@given(
    device=DEVICES,
    stretches=st.lists(st.tuples(PLANS, st.sampled_from([1, 1, 2, 3, 20])), min_size=1, max_size=8),
    texts=st.lists(st.tuples(TEXTS, st.integers(0, 12)), min_size=1, max_size=6),
    max_batch=st.integers(1, 4),
    agreement=st.sampled_from([0.3, 2.0, 1e6]),
)
def test_no_sequence_of_plans_changes_a_token(
    work, device, stretches, texts, max_batch, agreement
) -> None:
    plans = [plan for plan, times in stretches for _ in range(times)]
    policy = Scripted(plans, K, W)
    pair = ResidentPair(
        device(),
        "ssd",
        work=work,
        num_draft=K,
        num_branches=W,
        max_len=400,
        max_batch=max_batch,
        agreement=agreement,
        policy=policy,
    )
    check(pair, run(pair, texts))
    assert [report.plan for report in policy.reports] == policy.asked


@settings(deadline=None)
@given(
    mode=st.sampled_from(["ar", "sd", "ssd"]),
    params=LAWS,
    min_tokens=st.integers(1, 30),
    draft_vocab=st.sampled_from([None, 7]),
)
def test_a_text_cannot_end_before_its_least_length(
    work, mode, params, min_tokens, draft_vocab
) -> None:
    """Stop tokens have no mass there, in the target's law and in the draft's."""
    options = {"max_tokens": 40, "stop_ids": frozenset({0, 3, 5}), "min_tokens": min_tokens}
    pair = ResidentPair(
        HostDevice(check=True), mode, work=work, draft_vocab=draft_vocab, max_batch=2
    )
    texts = [({"prompt": [1, prompt], "params": params, **options}, 0) for prompt in range(4)]
    tickets = run(pair, texts)
    check(pair, tickets)
    assert all(len(ticket.request.generated) >= min_tokens for ticket, *_ in tickets)


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_texts_end_at_the_contexts_end(work, mode: str) -> None:
    """At every length of the prompt: drafts behind the end would leave the cache."""
    for length in range(1, 40):
        pair = ResidentPair(HostDevice(check=True), mode, work=work, max_len=40, agreement=1e6)
        prompt = [token % VOCAB for token in range(length)]
        check(pair, run(pair, [({"prompt": prompt, "params": WARM, **ENDLESS}, 0)]))


ENDLESS = {"max_tokens": 99, "stop_ids": frozenset()}


@pytest.mark.parametrize(
    ("first", "then"), list(itertools.permutations([PLAIN, SD, SSD], 2)), ids=lambda plan: plan.mode
)
def test_every_switch_at_every_round_boundary(work, first, then) -> None:
    """Both modes must have done their part: never drafting would be exact, too."""
    for num_before in range(1, 9):
        policy = Scripted([first] * num_before + [then], K, W, once=True)
        pair = ResidentPair(
            SeededDevice(lazy),
            "ssd",
            work=work,
            num_draft=K,
            num_branches=W,
            agreement=1e6,
            policy=policy,
        )
        text = {"prompt": [1, 2], "params": WARM, "max_tokens": 40, "stop_ids": frozenset()}
        check(pair, run(pair, [(text, 0)]))
        judged = [report for report in policy.reports if report.rows]
        for plan in {report.plan for report in judged}:
            rounds = [report.rows[0] for report in judged if report.plan == plan]
            drafted = sum(row.num_drafted for row in rounds)
            assert (drafted > 0) == (plan.mode == "sd" or (plan.mode == "ssd" and len(rounds) > 1))


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampling"])
def test_a_perfect_draft_is_accepted_and_hits(work, params) -> None:
    """A wrong candidate, cache row or position would cost acceptance, and no test of tokens sees
    that: all but the first round must hit, with every draft accepted."""
    policy = Scripted([SSD], K, W)
    pair = ResidentPair(
        HostDevice(check=True),
        "ssd",
        work=work,
        num_draft=K,
        num_branches=W,
        max_batch=3,
        agreement=1e9,
        policy=policy,
    )
    texts = [({"prompt": [5, each], "params": params, **ENDLESS}, each) for each in range(3)]
    check(pair, run(pair, texts))
    rows = [row for report in policy.reports for row in report.rows]
    known = [row for row in rows if row.hit is not None]
    assert len(known) >= len(rows) - 2 * 3
    assert all(row.hit for row in known)
    drafted = sum(row.num_drafted for row in rows)
    assert sum(row.accepted for row in rows) == drafted > 20 * K


def test_caches_grow_in_time(work) -> None:
    """Wherever a text stands when its caches are re-laid out for more rows: a branch that is
    committed behind the bound rows would land in another text's."""
    for length in range(20, 90, 3):
        policy = Scripted([SSD], K, W)
        pair = ResidentPair(
            SeededDevice(eager),
            "ssd",
            work=work,
            num_draft=K,
            num_branches=W,
            max_batch=2,
            max_len=200,
            agreement=1e9,
            policy=policy,
        )
        texts = [
            ({"prompt": [each] * length, "params": GREEDY, **ENDLESS, "max_tokens": 45}, 0)
            for each in (4, 9)
        ]
        check(pair, run(pair, texts))
        rows = [row for report in policy.reports for row in report.rows]
        drafted = sum(row.num_drafted for row in rows)
        assert sum(row.accepted for row in rows) == drafted > 45, length


def test_a_perfect_draft_is_accepted_between_verifications(work) -> None:
    """A trunk that lacks its last token, or holds it twice, would be rejected."""
    policy = Scripted([SD], K, W)
    pair = ResidentPair(
        HostDevice(check=True), "ssd", work=work, num_draft=K, agreement=1e9, policy=policy
    )
    check(pair, run(pair, [({"prompt": [5, 1], "params": WARM, **ENDLESS}, 0)]))
    rows = [row for report in policy.reports for row in report.rows]
    assert sum(row.accepted for row in rows) == sum(row.num_drafted for row in rows) > 0


FAULTS = [
    *(
        ("draft", label)
        for label in ("reset", "admit", "prompt", "draft", "follow", "prepare", "adopt", "commit")
    ),
    *(("draft", label) for label in ("move", "retire", "resume", "catch up")),
]


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("is_late", [False, True], ids=["instead", "behind"])
@pytest.mark.parametrize(("stream", "label"), FAULTS)
def test_a_draft_that_fails_costs_no_token(work, stream: str, label: str, is_late: bool) -> None:
    """At any kind of its work, the first and a later one: the target goes on alone from where it
    stands."""
    for number in (0, 2):
        fault = Fault(stream, label, number, late=is_late)
        policy = Scripted([SSD] * 4 + [SD] * 3 + [PLAIN] * 4, K, W)
        pair = ResidentPair(
            FaultyDevice(HostDevice(), [fault]),
            "ssd",
            work=work,
            num_draft=K,
            num_branches=W,
            max_batch=3,
            max_len=160,
            draft_timeout_s=30.0,
            policy=policy,
        )
        texts = [
            ({"prompt": [1] * length, "params": params, **ENDLESS, "max_tokens": most}, steps)
            for length, params, most, steps in (
                (70, GREEDY, 30, 0),
                (2, WARM, 9, 3),
                (5, GREEDY, 60, 2),
                (3, WARM, 40, 9),
            )
        ]
        check(pair, run(pair, texts))
        assert fault.has_struck == (pair.scheduler.note is not None)
        assert fault.has_struck or number
