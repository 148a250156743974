"""Proposals that end where the draft is unsure: fewer drafts, the same tokens."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback
from runtime.spec.length import Costs, Lengths
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport
from tests.helpers.policies import Scripted
from tests.helpers.toy_pair import VOCAB, ToyPair, plain

K, W = 4, 8
FREE, CPU, HOPELESS = Costs(1.0, 0.0, 0.0), Costs(1.0, 0.15, 0.05), Costs(1.0, 2.0, 0.0)
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=7)
DEVICES = st.one_of(
    st.just(lambda: SeededDevice(lazy)),
    st.just(lambda: SeededDevice(eager)),
    st.just(lambda: HostDevice(check=True)),
    st.integers(0, 2**32).map(lambda seed: lambda: SeededDevice(random.Random(seed))),
)


def run(mode: str, costs: Costs | None, **options) -> tuple[ToyPair, list, list[RoundReport]]:
    reports: list[RoundReport] = []
    prompts = options.pop("prompts", [[1, 2]])
    params = options.pop("params", [GREEDY] * len(prompts))
    pair = ToyPair(
        options.pop("device", None) or SeededDevice(lazy),
        mode,
        num_draft=K,
        num_branches=W,
        max_len=200,
        lengths=None if costs is None else Lengths(costs),
        on_round=reports.append,
        **options,
    )
    requests, _ = pair.generate(prompts, params, max_tokens=60)
    pair.device.close()
    return pair, requests, reports


def drafted(reports: list[RoundReport]) -> list[int]:
    return [row.num_drafted for report in reports for row in report.rows]


@given(
    device=DEVICES,
    mode=st.sampled_from(["sd", "ssd", "mixed"]),
    costs=st.builds(Costs, st.just(1.0), st.floats(0, 1), st.floats(0, 0.5)),
    fallback=st.sampled_from(Fallback),
    prompts=st.lists(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=4
    ),
    params=st.sampled_from([GREEDY, WARM]),
    max_batch=st.integers(1, 3),
    agreement=st.sampled_from([0.3, 2.0, 1e6]),
    draft_vocab=st.sampled_from([None, 9]),
)
def test_no_token_changes(
    device, mode, costs, fallback, prompts, params, max_batch, agreement, draft_vocab
) -> None:
    """Whatever is left out, at every temperature, through changes of mode."""
    policy = None
    if mode == "mixed":
        plans = [RoundPlan("sd", K), RoundPlan("sd", 2), RoundPlan("ssd", K, W, fallback)]
        policy = Scripted([*plans, PLAIN, *plans[::-1], plans[-1]], K, W)
        mode = "ssd"
    pair, requests, _ = run(
        mode,
        costs,
        device=device(),
        fallback=fallback,
        prompts=prompts,
        params=[params] * len(prompts),
        max_batch=max_batch,
        agreement=agreement,
        draft_vocab=draft_vocab,
        policy=policy,
    )
    for request in requests:
        alone = type(request)(request.prompt, params, 60, frozenset(), 200)
        assert request.generated == plain(pair.target_session.table, alone).generated


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampling"])
@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_dearer_verification_makes_shorter_proposals(mode: str, params: SamplingParams) -> None:
    lengths = [
        drafted(run(mode, costs, params=[params], fallback=Fallback.JIT)[2])
        for costs in (None, FREE, CPU, HOPELESS)
    ]
    free, cpu, hopeless = lengths[1:]
    assert lengths[0] == free
    assert 0 < sum(cpu) / len(cpu) < sum(free) / len(free)
    assert {1, 2} & set(cpu)
    if mode == "sd":
        assert set(hopeless) == {0}


def test_what_is_left_out_would_seldom_have_been_accepted() -> None:
    """Acceptance of what is proposed rises, or the confidences are those of other tokens."""

    def rate(costs: Costs) -> float:
        prompts = [[a, b] for a in range(6) for b in range(6)]
        rows = [
            row
            for report in run("sd", costs, prompts=prompts, agreement=1.0)[2]
            for row in report.rows
        ]
        return sum(row.accepted for row in rows) / sum(row.num_drafted for row in rows)

    assert rate(CPU) > 1.2 * rate(FREE)


def test_a_draft_that_is_surer_than_it_is_right_is_seen_through() -> None:
    """Its confidence is learnt from the proposals that were judged."""
    pair, _, reports = run(
        "sd", Costs(1.0, 0.3, 0.0), prompts=[[1, 2], [3, 4], [5, 6]], agreement=1e-3
    )
    lengths = drafted(reports)
    late = lengths[len(lengths) // 2 :]
    assert sum(late) / len(late) < 0.5 * sum(lengths[:10]) / 10
    assert pair.draft is not None


def test_rows_of_a_batch_end_each_at_its_own_place() -> None:
    prompts = [[a, 3] for a in range(6)]
    _, _, reports = run("sd", CPU, prompts=prompts, max_batch=3)
    widths = {tuple(row.num_drafted for row in report.rows) for report in reports}
    assert any(len(set(each)) > 1 for each in widths)
