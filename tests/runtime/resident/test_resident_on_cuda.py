"""Resident pairs on the simulated CUDA: the tokens, and what the driver is asked for.

Engines are the simulated TensorRT's, kernels run in their host form when the simulated GPU comes to
them: late, or in any order that the events allow. So a missing event, a buffer that is written too
soon or Python that looks at device memory shows as wrong tokens.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan
from tests.helpers.fake_cuda import EAGER, LAZY
from tests.helpers.policies import Scripted
from tests.helpers.resident_on_cuda import CudaPair, K, W
from tests.helpers.tensorrt_sessions import Bench
from tests.helpers.toy_pair import plain

ENDLESS: dict[str, Any] = {"max_tokens": 40, "stop_ids": frozenset()}
LAWS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.0, seed=4, top_k=5, top_p=0.9),
    SamplingParams(temperature=1.0, seed=5),
    SamplingParams(),
]
TEXTS = [
    {"prompt": [index + 1] * length, "params": law, "num_logprobs": logprobs, **ENDLESS}
    for index, (law, length, logprobs) in enumerate(
        zip(LAWS, (3, 1, 70, 5, 30), (None, 1, None, None, 0), strict=True)
    )
]
ORDERS = {"eager": EAGER, "lazy": LAZY, "random": random.Random(5)}
STREAMS = ("stream target", "stream draft")


def check(pair: CudaPair, requests: list[Request]) -> None:
    for request, options in zip(requests, TEXTS, strict=False):
        alone = plain(pair.table, Request(max_len=pair.max_len, **options))
        assert request.generated == alone.generated
        assert request.logprobs == alone.logprobs


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_one_gpu_gives_plain_decodings_tokens(tmp_path: Path, mode: str, order: str) -> None:
    """More texts than slots: they join, leave and move while others go on."""
    pair = CudaPair(Bench(tmp_path, order=ORDERS[order]), mode)
    check(pair, pair.run(TEXTS))
    pair.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("has_link", [True, False])
def test_two_gpus_give_plain_decodings_tokens(tmp_path: Path, has_link: bool, order: str) -> None:
    """Over their link, and over page-locked memory where they have none; with changing plans."""
    bench = Bench(tmp_path, order=ORDERS[order], num_gpus=2)
    bench.cuda.has_link = has_link
    plans = [RoundPlan("ssd", K, W)] * 7 + [PLAIN] * 2 + [RoundPlan("sd", 2)] * 3
    plans += [RoundPlan("ssd", 2, 3)] * 4
    policy = Scripted(plans, K, W)
    pair = CudaPair(bench, "ssd", draft_gpu=1, policy=policy)
    check(pair, pair.run(TEXTS))
    pair.close()
    hits = [row for report in policy.reports for row in report.rows if row.hit]
    assert hits
    assert all(row.rank is not None for row in hits), "a report was read before it had come"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize(
    ("fallback", "drafter"),
    [
        (Fallback.ZERO, Drafter.MODEL),
        (Fallback.LOOKUP, Drafter.MODEL),
        (Fallback.ZERO, Drafter.BOTH),
    ],
)
def test_a_draft_on_the_host_gives_plain_decodings_tokens(
    tmp_path: Path, mode: str, order: str, fallback: Fallback, drafter: Drafter
) -> None:
    """Its messages are page-locked memory, which it must not read before they are there."""
    bench = Bench(tmp_path, order=ORDERS[order])
    policy = Scripted([RoundPlan(mode, K, W, fallback, drafter)], K, W)
    pair = CudaPair(bench, mode, draft_gpu=None, policy=policy, fallback=fallback)
    check(pair, pair.run(TEXTS))
    rows = [row for report in policy.reports for row in report.rows]
    assert sum(row.accepted for row in rows) > 0
    copied = [row for row in rows if row.kind is ProposalKind.LOOKUP]
    assert bool(copied) == (drafter is Drafter.BOTH or (fallback, mode) == (Fallback.LOOKUP, "ssd"))
    assert mode == "sd" or any(row.rank is not None for row in rows)
    pair.close()


def texts_of(count: int) -> list[dict[str, Any]]:
    return [{**TEXTS[0], "prompt": [index]} for index in range(count)]


def calls_in_rounds(pair: CudaPair, count: int) -> tuple[list[Counter[str]], Counter[str]]:
    """What the streams' threads asked the driver for in each step of a warm pair, and what every
    thread did in all of them."""
    texts = texts_of(count)
    for _ in range(3):
        pair.run(texts)
    calls, steps = pair.bench.cuda.calls, []
    assert calls is not None
    calls.clear()

    def look() -> None:
        steps.append(Counter(call.name for call in calls if call.thread in STREAMS))
        everything.update(call.name for call in calls)
        calls.clear()

    everything: Counter[str] = Counter()
    requests = pair.run(texts, look)
    assert all(len(request.generated) == 40 for request in requests)
    return steps, everything


@pytest.mark.parametrize("order", [EAGER, LAZY])
@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_a_round_waits_for_nothing_and_allocates_nothing(
    tmp_path: Path, mode: str, order: str
) -> None:
    """No stream's thread ever waits for the GPU: the one wait of a round is the host's."""
    pair = CudaPair(Bench(tmp_path, order=order), mode)
    steps, everything = calls_in_rounds(pair, 3)
    pair.close()
    in_work = sum(steps, Counter())
    assert in_work["Graph.launch"] > 0
    forbidden = {"sync", "Device.sync", "allocate", "create_stream"}
    assert not forbidden & set(in_work)
    assert not {"sync", "Device.sync", "allocate"} & set(everything)


@pytest.mark.parametrize(("mode", "num_phases"), [("ar", 1), ("sd", 3), ("ssd", 4)])
def test_a_warm_round_is_a_few_graphs(tmp_path: Path, mode: str, num_phases: int) -> None:
    """``sd`` is draft, verify, follow; ``ssd`` prepare, verify, adopt and commit. Beside them only
    messages are copied: no kernel has a launch of its own."""
    pair = CudaPair(Bench(tmp_path, order=EAGER), mode)
    steps, _ = calls_in_rounds(pair, 1)
    pair.close()
    inner = steps[len(steps) // 3 : -3]  # not where the text joins and leaves
    num_graphs = sum(each["Graph.launch"] for each in inner)
    # A thread may be a round ahead of the host's step, or behind it.
    assert num_phases * (len(inner) - 2) <= num_graphs <= num_phases * (len(inner) + 2)
    assert sum(each["kernel"] for each in inner) <= 1, "a new fan-out may have been put"


def test_graphs_are_captured_once_and_replayed(tmp_path: Path) -> None:
    """A graph a phase and shape, however many rounds there are."""
    pair = CudaPair(Bench(tmp_path, order=EAGER), "ssd")
    for _ in range(3):
        pair.run(texts_of(3))
    before = pair.target.phases.num_graphs, pair.draft.phases.num_graphs
    pair.run(texts_of(3))
    assert (pair.target.phases.num_graphs, pair.draft.phases.num_graphs) == before
    assert min(before) > 0
    pair.close()
