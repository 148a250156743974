"""Rounds whose plan changes: the same tokens whatever comes after what, and the draft is back."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError, DeviceError
from runtime.course import AT_ONCE
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan
from runtime.spec.statistics import OutcomeStatistics
from tests.helpers.comers import decode_as_they_come
from tests.helpers.policies import Scripted
from tests.helpers.toy_pair import VOCAB, ToyPair, plain

K, W = 4, 8
SD, SSD = RoundPlan("sd", K), RoundPlan("ssd", K, W)
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=7)
DEVICES = st.one_of(
    st.just(lambda: SeededDevice(lazy)),
    st.just(lambda: SeededDevice(eager)),
    st.just(lambda: HostDevice(check=True)),
    st.integers(0, 2**32).map(lambda seed: lambda: SeededDevice(random.Random(seed))),
)


def _possible(plan: RoundPlan) -> str:
    """Lookups alone prepare nothing."""
    return "sd" if plan.mode == "ssd" and plan.drafter is Drafter.LOOKUP else plan.mode


PLANS = st.builds(
    RoundPlan,
    mode=st.sampled_from(["ar", "ar", "sd", "ssd", "ssd"]),
    num_draft=st.integers(1, K),
    num_branches=st.integers(1, W),
    fallback=st.sampled_from(Fallback),
    drafter=st.sampled_from(Drafter),
    floor=st.sampled_from([0.0, 0.2, 1.0]),
).map(lambda plan: replace(plan, mode=_possible(plan)))
STRETCHES = st.lists(st.tuples(PLANS, st.sampled_from([1, 1, 2, 3, 20])), min_size=1, max_size=8)
TEXTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda tokens, times: tokens * times,
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4),
            st.sampled_from([1, 3, 20, 50]),
        ),
        "params": st.sampled_from([GREEDY, WARM, SamplingParams(temperature=1.0, seed=1, top_k=4)]),
        "max_tokens": st.integers(1, 60),
        "stop_ids": st.sampled_from([(), (), (3,)]).map(frozenset),
        "num_logprobs": st.sampled_from([None, None, 1]),
    }
)


def scripted_pair(plans, device, *, once=True, **options) -> tuple[ToyPair, Scripted]:
    policy = Scripted(plans, K, W, once=once)
    options = {"num_draft": K, "num_branches": W, "max_len": 400} | options
    return ToyPair(device, "ssd", policy=policy, **options), policy


@given(
    device=DEVICES,
    stretches=STRETCHES,
    texts=st.lists(st.tuples(TEXTS, st.integers(0, 12)), min_size=1, max_size=6),
    max_batch=st.integers(1, 4),
    agreement=st.sampled_from([0.3, 2.0, 1e6]),
    cancelled=st.none() | st.integers(0, 30),
)
def test_no_sequence_of_plans_changes_a_token(
    device, stretches, texts, max_batch, agreement, cancelled
) -> None:
    """With texts that join and leave at any round, at all temperatures."""
    plans = [plan for plan, times in stretches for _ in range(times)]
    pair, policy = scripted_pair(
        plans, device(), once=False, max_batch=max_batch, agreement=agreement
    )
    tickets = decode_as_they_come(pair.scheduler, pair.max_len, texts, cancelled)
    pair.device.close()
    for ticket, handed, options in tickets:
        alone = plain(pair.target_session.table, Request(max_len=pair.max_len, **options))
        assert ticket.done
        assert handed == ticket.request.generated
        if ticket.request.finish_reason is FinishReason.CANCELLED:
            assert handed == alone.generated[: len(handed)]
            continue
        assert handed == alone.generated
        assert ticket.request.finish_reason is alone.finish_reason
        assert ticket.stats.num_tokens == len(handed)
        assert ticket.stats.num_emitted == ticket.request.num_emitted
    assert len(policy.reports) == len(policy.asked), "a round was planned and never heard of again"
    assert [report.plan for report in policy.reports] == policy.asked
    assert pair.scheduler.num_free == max_batch


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampling"])
@pytest.mark.parametrize(
    ("first", "then"), list(itertools.permutations([PLAIN, SD, SSD], 2)), ids=lambda plan: plan.mode
)
def test_every_switch_at_every_round_boundary(first, then, params) -> None:
    """A text of 40 tokens is switched after 1, 2, ... rounds; both modes must have done their part:
    never drafting would be exact, too."""
    expected = plain(
        ToyPair(SeededDevice(0), "ar").target_session.table,
        Request([1, 2], params, 40, frozenset(), 400),
    ).generated
    for num_before, device in itertools.product(
        range(1, 9), (lambda: SeededDevice(lazy), lambda: SeededDevice(3))
    ):
        pair, policy = scripted_pair([first] * num_before + [then], device(), agreement=1e6)
        requests, _ = pair.generate([[1, 2]], [params], max_tokens=40)
        pair.device.close()
        assert requests[0].generated == expected
        judged = [report for report in policy.reports if report.rows]
        assert all(not report.rows[0].is_behind for report in judged)
        for plan in {report.plan for report in judged}:
            rounds = [report.rows[0] for report in judged if report.plan == plan]
            drafted = sum(row.num_drafted for row in rounds)
            assert (drafted > 0) == (plan.mode == "sd" or (plan.mode == "ssd" and len(rounds) > 1))


@pytest.mark.parametrize("device", [lambda: HostDevice(check=True), lambda: SeededDevice(eager)])
@pytest.mark.parametrize("mode", [SD, SSD], ids=lambda plan: plan.mode)
def test_acceptance_is_back_at_once_after_a_rest(mode, device) -> None:
    """A perfect draft that was not told of the plain rounds' tokens, or told of wrong ones, would
    be rejected for the rest of the text."""
    plans = [mode] * 4 + [PLAIN] * 30 + [mode]
    pair, policy = scripted_pair(plans, device(), agreement=1e6)
    pair.generate([[1, 2]], [WARM], max_tokens=200)
    pair.device.close()
    back = [report.rows[0] for report in policy.reports[34:] if report.rows]
    assert not any(row.is_behind for row in back)
    assert all(row.accepted == row.num_drafted for row in back)
    assert [row.num_drafted for row in back][:3] == ([K] * 3 if mode is SD else [0, K, K])
    assert [row.hit for row in back][:3] == ([None] * 3 if mode is SD else [None, True, True])


@pytest.mark.parametrize(
    "device", [lambda: HostDevice(check=True), lambda: SeededDevice(lazy), lambda: SeededDevice(8)]
)
def test_a_draft_that_lacks_much_catches_up_while_the_target_goes_on(device) -> None:
    """It rested through prompts, too: what it lacks is fed in chunks, and no round waits for it."""
    pair, policy = scripted_pair([PLAIN] * 9 + [SSD], device(), agreement=1e6, max_batch=2)
    pair.generate([[1]], [GREEDY], max_tokens=3)
    num_runs = pair.draft_session.num_runs
    prompts = [[1, 2, 3, 4] * 60, [5, 6] * 40]
    requests, _ = pair.generate(prompts, [WARM, GREEDY], max_tokens=120)
    pair.device.close()
    for request, prompt, params in zip(requests, prompts, (WARM, GREEDY), strict=True):
        alone = Request(prompt, params, 120, frozenset(), 400)
        assert request.generated == plain(pair.target_session.table, alone).generated
    rows = [row for report in policy.reports[4:] for row in report.rows]
    assert num_runs == 0
    assert len(prompts[0]) > AT_ONCE
    assert any(row.is_behind for row in rows), "nothing was ever missing"
    drafted = [row for row in rows if row.num_drafted]
    assert sum(row.num_drafted for row in drafted) > 50, "it never came back"
    assert all(row.accepted == row.num_drafted for row in drafted)
    assert not any(row.is_behind for row in drafted)


def test_a_draft_at_rest_is_not_called() -> None:
    """It may share the cores, or the device, with the target."""
    pair, _ = scripted_pair([PLAIN], SeededDevice(eager), max_batch=2)
    pair.generate([[1, 2] * 40, [3], [4] * 9], [GREEDY] * 3)
    assert pair.draft_session.num_runs == 1  # the first text's first chunk: nothing was planned yet
    pair.device.close()


def test_depth_width_and_fallback_may_change_every_round() -> None:
    """What is verified was drafted under the plan before."""
    changing = [
        RoundPlan("ssd", depth, width, fallback)
        for depth, width, fallback in itertools.product((1, 4, 2), (8, 5), Fallback)
    ]
    pair, policy = scripted_pair(changing, SeededDevice(5), once=False, max_batch=3)
    prompts = [[1, 2], [3], [4, 5]]
    requests, stats = pair.generate(prompts, [WARM, GREEDY, GREEDY], max_tokens=150)
    pair.device.close()
    for request, params in zip(requests, [WARM, GREEDY, GREEDY], strict=True):
        alone = Request(request.prompt, params, 150, frozenset(), 400)
        assert request.generated == plain(pair.target_session.table, alone).generated
    for before, after in itertools.pairwise(policy.reports):
        for row in after.rows:
            assert row.num_drafted <= max(before.plan.num_draft, after.plan.num_draft) + 1
    assert {row.num_drafted for report in policy.reports for row in report.rows} >= {0, 1, 2, 4}
    assert min(stats.num_jit, stats.num_lookup, stats.num_hits or 0) > 0


def test_a_report_says_which_rank_the_last_bonus_token_had(monkeypatch) -> None:
    """Outcome logs and the controller are fed by it; the draft's own statistics know it, too."""
    seen: list[tuple[ProposalKind, int | None]] = []
    observe = OutcomeStatistics.observe

    def noted(self, **values) -> None:
        seen.append((values["kind"], values["rank"]))
        observe(self, **values)

    monkeypatch.setattr(OutcomeStatistics, "observe", noted)
    pair, policy = scripted_pair([SSD], SeededDevice(eager), agreement=0.7)
    pair.generate([[1, 2]], [GREEDY], max_tokens=150)
    pair.device.close()
    rows = [report.rows[0] for report in policy.reports if report.rows]
    told = [(before.kind, after.rank) for before, after in itertools.pairwise(rows)]
    assert told == seen[: len(told)]
    assert len({rank for _, rank in told}) > 2


def test_seconds_are_told_of_rounds_that_follow_each_other_alone() -> None:
    """The controller judges plans by them: a prompt in between would be held against one. What a
    change of mode takes is told, too, but marked: it says nothing of the plan, and is paid for."""
    pair, policy = scripted_pair([SSD, SSD, SSD, PLAIN, PLAIN, SSD, SSD], SeededDevice(eager))
    ticket = pair.scheduler.submit(Request([1, 2], GREEDY, 100, frozenset(), 400))
    for _ in range(9):
        pair.scheduler.step()
    pair.scheduler.cancel(ticket)
    while pair.scheduler.step():
        pass
    pair.device.close()
    told = [report for report in policy.reports if report.rows][:7]
    assert [report.seconds is not None for report in told] == [False, *[True] * 6]
    assert [report.is_steady for report in told] == [False, True, True, True, True, False, True]
    assert all(report.verify_s > 0 for report in policy.reports if report.rows)


def test_a_report_says_how_many_cache_rows_a_verification_was_given() -> None:
    """The controller took what long texts cost for a machine that had become slow."""
    pair, policy = scripted_pair([PLAIN, SSD, SD], SeededDevice(eager), once=False)
    lengths = pair.target_session.manifest.lengths
    for num_prompt in (2, 300, 2):
        pair.generate([[1] * num_prompt], [GREEDY], max_tokens=20)
    pair.device.close()
    spans = [report.span for report in policy.reports if report.rows]
    assert set(spans) <= set(lengths)
    assert spans[0] == spans[-1] == lengths[0] < 320 <= max(spans)


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (RoundPlan("ssd", K + 1, W), "loaded for 4 and 8 at most"),
        (RoundPlan("ssd", K, 0), "loaded for"),
        (RoundPlan("tree", K, W), "mode 'tree' was planned"),
        (RoundPlan("ssd", K, W, drafter=Drafter.LOOKUP), "lookup prepares no outcomes"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(plan, words) -> None:
    pair = ToyPair(SeededDevice(0), "ssd", policy=Always(plan))
    with pytest.raises((CapacityError, DeviceError), match=words):
        pair.generate([[1]], [GREEDY])
    assert pair.scheduler.num_free == 1
    pair.device.close()


@pytest.mark.parametrize("drafter", [Drafter.MODEL, Drafter.BOTH])
def test_the_model_of_a_pair_that_only_looks_up_is_refused(drafter: Drafter) -> None:
    plan = RoundPlan("sd", K, drafter=drafter)
    pair = ToyPair(SeededDevice(0), "sd", has_engine=False, policy=Always(plan))
    with pytest.raises(DeviceError, match=f"drafter {drafter} needs a draft engine"):
        pair.generate([[1]], [GREEDY])
    pair.device.close()


@pytest.mark.parametrize("device", [lambda: HostDevice(check=True), lambda: SeededDevice(lazy)])
def test_lookups_alone_leave_the_draft_behind_and_it_comes_back(device) -> None:
    """While lookups run no engine drafts, however long; what the model drafts afterwards is right
    at once, so it was fed all of it before."""
    lookup = RoundPlan("sd", K, drafter=Drafter.LOOKUP)
    pair, policy = scripted_pair([SD] * 3 + [lookup] * 180 + [SD], device(), agreement=1e6)
    requests, _ = pair.generate([[1, 2]], [WARM], max_tokens=380)
    pair.device.close()
    alone = plain(pair.target_session.table, Request([1, 2], WARM, 380, frozenset(), 400))
    assert requests[0].generated == alone.generated
    copied = [row for report in policy.reports if report.plan == lookup for row in report.rows]
    assert {row.kind for row in copied} <= {ProposalKind.LOOKUP, ProposalKind.NONE}
    assert any(row.accepted for row in copied)
    after = [row for report in policy.reports[183:] for row in report.rows]
    assert any(row.is_behind for row in after), "nothing was thought to be missing"
    back = [row for row in after if not row.is_behind][:-1]  # the last may have no room for drafts
    assert back
    assert all(row.kind is ProposalKind.JIT for row in back)
    assert all(row.accepted == row.num_drafted for row in back)


def test_reports_say_what_lookups_would_have_come_to() -> None:
    """Of plain rounds too, and of a real lookup what it was: the chain of the whole text."""
    lookup = RoundPlan("sd", K, drafter=Drafter.LOOKUP)
    pair, policy = scripted_pair([PLAIN] * 40 + [lookup], SeededDevice(1))
    pair.generate([[1, 2, 3] * 5], [GREEDY], max_tokens=90)
    pair.device.close()
    plain_rounds = [row for report in policy.reports[:40] for row in report.rows]
    settled = [looked for row in plain_rounds for looked in row.looked]
    assert sum(looked.num_confirmed + 1 for looked in settled) in range(40 - K, 41)
    real = [row for report in policy.reports[40:] for row in report.rows]
    assert any(row.num_drafted for row in real)
    for row in real:
        if row.num_drafted:
            assert [each[1:] for each in row.looked] == [(row.num_drafted, row.accepted)]


def test_drafting_without_a_draft_is_refused() -> None:
    pair = ToyPair(SeededDevice(0), "ar", policy=Always(SSD))
    with pytest.raises(DeviceError, match="mode ssd needs a draft"):
        pair.generate([[1]], [GREEDY])
    pair.device.close()


class Always(Scripted):
    def __init__(self, plan: RoundPlan) -> None:
        super().__init__([plan], 99, 99)
