"""A resident pair of simulated TensorRT engines on the simulated CUDA: captured, replayed, lazy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engines.manifest import DRAFT, TARGET
from engines.tensors import DType
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.request import Request
from runtime.resident import (
    Exchange,
    HostDraft,
    HostDraftExchange,
    ResidentDraft,
    ResidentTarget,
    work_on,
)
from runtime.round import draft_side, target_side
from runtime.sampling.api import rule
from runtime.scheduler import Scheduler
from runtime.spec.fallback import Fallback
from runtime.spec.plan import Policy
from runtime.spec.statistics import OutcomeStatistics
from tests.helpers.simulated_gpu import kernels_of
from tests.helpers.tensorrt_sessions import LIMITS, Bench
from tests.helpers.toy_pair import tables

K, W = LIMITS.num_draft, LIMITS.max_branches


class CudaPair:
    """The target on GPU 0, the draft on GPU ``draft_gpu`` or, without one, on the host."""

    def __init__(
        self,
        bench: Bench,
        mode: str,
        *,
        draft_gpu: int | None = 0,
        seed: int = 1,
        policy: Policy | None = None,
        fallback: Fallback = Fallback.ZERO,
    ) -> None:
        self.bench = bench
        self.table, draft_table, ids = tables(seed, draft_vocab=7)
        self.max_len, size = LIMITS.max_len, LIMITS.max_batch
        device = bench.device()
        stream = device.create_stream("target")
        session = bench.open(TARGET, stream=stream, manifest=bench.manifest(TARGET, seed))
        work = work_on(device, stream, kernels_of(bench.cuda))
        vocab = session.manifest.model.output_vocab
        there = None if draft_gpu is None else bench.device(draft_gpu)
        self.mailbox: Any = (
            HostDraftExchange(device, size, K, vocab_size=vocab)
            if there is None
            else Exchange(device, there, size, K, vocab_size=vocab, logits=DType.FLOAT32)
        )
        self.target = ResidentTarget(session, device, work, self.mailbox)
        near, far = target_side(stream, self.target), None
        statistics = OutcomeStatistics(K, W)
        self.draft: Any = None
        if mode != "ar" and there is None:
            host = ToySession(DRAFT, draft_table, LIMITS, HostDevice(), vocab_map=ids)
            self.draft = HostDraft(
                host,
                rule("coupled"),
                self.mailbox,
                device=device,
                num_draft=K,
                num_branches=W,
                statistics=statistics,
                fallback=fallback,
            )
            far = draft_side(device.create_stream("draft"), self.draft)
        elif mode != "ar":
            assert there is not None
            far_stream = there.create_stream("draft")
            self.draft = ResidentDraft(
                bench.open(
                    DRAFT, stream=far_stream, gpu=draft_gpu, manifest=bench.manifest(DRAFT, seed)
                ),
                there,
                work if there is device else work_on(there, far_stream, kernels_of(bench.cuda)),
                self.mailbox,
                num_draft=K,
                num_branches=W,
                statistics=statistics,
            )
            far_stream.launch(self.draft.load, label="load")
            far = draft_side(far_stream, self.draft)
        self.scheduler = Scheduler(device, mode, near, far, max_batch=size, policy=policy)

    def run(
        self, texts: Sequence[dict[str, Any]], between: Callable[[], None] = lambda: None
    ) -> list[Request]:
        """Decode all; ``between`` is called before each step."""
        requests = [Request(max_len=self.max_len, **options) for options in texts]
        for request in requests:
            self.scheduler.submit(request)
        while True:
            between()
            if not self.scheduler.step():
                return requests

    def close(self) -> None:
        """Graphs go before the sessions whose steps are in them."""
        self.scheduler._rounds.finish()
        self.target.phases.forget()
        if isinstance(self.draft, ResidentDraft):
            self.draft.phases.forget()
        self.bench.close()
        assert self.bench.cuda.misuses == []
