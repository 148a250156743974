"""Whole generations by compiled engines: rounds of kernels and graphs, all but the GPU and TensorRT
real. The tokens are those of plain decoding with the target's table."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.manifest import DRAFT, TARGET, Limits
from engines.tensors import DType
from runtime.backends.api import CallShape
from runtime.request import Request
from runtime.resident.draft import ResidentDraft
from runtime.resident.exchange import Exchange
from runtime.resident.kernels import work_on
from runtime.resident.target import ResidentTarget
from runtime.round import draft_side, target_side
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from runtime.spec.statistics import OutcomeStatistics
from tests.helpers.fake_cuda import EAGER, LAZY
from tests.helpers.simulated_gpu import kernels_of
from tests.helpers.tensorrt_sessions import Bench
from tests.helpers.toy_pair import plain, tables

LIMITS = Limits(max_len=96, max_batch=2, num_draft=3, max_branches=6)
VOCAB = 12


class CompiledPair:
    """A scheduler over two compiled toys; the draft is on the last GPU of the bench."""

    def __init__(self, bench: Bench, mode: str) -> None:
        self.bench = bench
        self.workers: list[Any] = []
        near, far = bench.device(0), bench.device(bench.num_gpus - 1)
        load = kernels_of(bench.cuda)
        target_stream, draft_stream = near.create_stream("target"), far.create_stream("draft")
        self.target = bench.open(TARGET, stream=target_stream, num_slots=2)
        work = work_on(near, target_stream, load)
        mailbox = Exchange(near, far, 2, LIMITS.num_draft, vocab_size=VOCAB, logits=DType.FLOAT32)
        target = ResidentTarget(self.target, near, work, mailbox)
        self.workers.append(target)
        other = None
        if mode != "ar":
            self.draft = bench.open(DRAFT, stream=draft_stream, gpu=far.ordinal, num_slots=2)
            draft = ResidentDraft(
                self.draft,
                far,
                work if far is near else work_on(far, draft_stream, load),
                mailbox,
                num_draft=LIMITS.num_draft,
                num_branches=LIMITS.max_branches,
                statistics=OutcomeStatistics(LIMITS.num_draft, LIMITS.max_branches),
            )
            draft_stream.launch(draft.load, label="load")
            self.workers.append(draft)
            other = draft_side(draft_stream, draft)
        self.scheduler = Scheduler(
            near, mode, target_side(target_stream, target), other, max_batch=2
        )

    def generate(self, prompts: list[list[int]], law: SamplingParams) -> list[list[int]]:
        requests = [Request(prompt, law, 24, frozenset(), LIMITS.max_len) for prompt in prompts]
        self.scheduler.run(requests)
        return [request.generated for request in requests]

    @property
    def num_graphs(self) -> int:
        return sum(worker.phases.num_graphs for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.phases.forget()
        self.bench.close()


def expected(prompts: list[list[int]], law: SamplingParams) -> list[list[int]]:
    table, _, _ = tables(1, draft_vocab=7)
    requests = [Request(prompt, law, 24, frozenset(), LIMITS.max_len) for prompt in prompts]
    return [plain(table, request).generated for request in requests]


def texts() -> list[list[int]]:
    draw = np.random.default_rng(3).integers
    return [draw(0, VOCAB, length).tolist() for length in (5, 17, 1)]


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
@pytest.mark.parametrize("module", ["tensorrt", "tensorrt_rtx"])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_tokens_are_those_of_plain_decoding(
    tmp_path: Path, module: str, mode: str, temperature: float
) -> None:
    law = SamplingParams(temperature=temperature, seed=7)
    pair = CompiledPair(Bench(tmp_path, module, EAGER, LIMITS), mode)
    assert pair.generate(texts(), law) == expected(texts(), law)
    # Standard TensorRT's calls go into graphs of ours; TensorRT-RTX makes its own.
    assert (pair.num_graphs > 0) == (module == "tensorrt")
    pair.close()
    assert pair.bench.cuda.misuses == []


@pytest.mark.parametrize("order", [LAZY, 1, 2])
@pytest.mark.parametrize("num_gpus", [1, 2])
def test_no_order_that_events_allow_changes_a_token(
    tmp_path: Path, order: str | int, num_gpus: int
) -> None:
    law = SamplingParams(temperature=0.8, seed=11)
    chosen = random.Random(order) if isinstance(order, int) else order
    pair = CompiledPair(Bench(tmp_path, "tensorrt", chosen, LIMITS, num_gpus), "ssd")
    assert pair.generate(texts(), law) == expected(texts(), law)
    pair.close()
    assert pair.bench.cuda.misuses == []


def test_a_second_text_makes_no_context_and_no_graph(tmp_path: Path) -> None:
    """Contexts and graphs are what a first text pays for."""
    law = SamplingParams(temperature=0.0)
    pair = CompiledPair(Bench(tmp_path, "tensorrt", EAGER, LIMITS), "ssd")
    pair.generate(texts()[:1], law)
    pair.generate(texts()[:1], law)
    made = (len(pair.bench.trt.names("create_execution_context")), pair.num_graphs)
    pair.generate(texts()[:1], law)
    assert (len(pair.bench.trt.names("create_execution_context")), pair.num_graphs) == made
    pair.close()


def test_calls_are_warm_before_the_first_text_after_a_warm_up(tmp_path: Path) -> None:
    law = SamplingParams(temperature=0.0)
    pair = CompiledPair(Bench(tmp_path, "tensorrt_rtx", EAGER, LIMITS), "ar")
    stream = pair.target._stream
    stream.call(lambda: pair.target.warm_up([CallShape(0, 1, 1, 1), CallShape(0, 2, 1, 1)]))
    before = pair.bench.trt.num_compiled
    found = pair.generate([[5]], law)
    assert found == expected([[5]], law)
    assert pair.bench.trt.num_compiled == before
    pair.close()
