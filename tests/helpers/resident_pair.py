"""A toy pair whose rounds are kernels and device memory, on any device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.api import DeviceSession
from runtime.backends.device_host import HostDeviceSession
from runtime.backends.toy import ToySession
from runtime.device.api import Device
from runtime.request import Request
from runtime.resident.draft import ResidentDraft
from runtime.resident.exchange import Exchange
from runtime.resident.kernels import Work, work_on
from runtime.resident.target import ResidentTarget
from runtime.round import draft_side, target_side
from runtime.sampling.params import SamplingParams
from runtime.scheduler import OnRound, Scheduler, Stats
from runtime.spec.plan import Policy
from runtime.spec.statistics import OutcomeStatistics
from tests.helpers.toy_pair import VOCAB, tables


class ResidentPair:
    """As ``tests.helpers.toy_pair.ToyPair``, for resident workers."""

    def __init__(
        self,
        device: Device,
        mode: str,
        *,
        table_seed: int = 0,
        num_draft: int = 3,
        num_branches: int = 6,
        built_branches: int | None = None,
        max_len: int = 96,
        max_batch: int = 1,
        agreement: float = 2.0,
        vocab: int = VOCAB,
        draft_vocab: int | None = None,
        draft_knows: int | None = None,
        min_tokens: int = 1,
        policy: Policy | None = None,
        on_round: OnRound | None = None,
        draft_timeout_s: float | None = None,
        work: Work | None = None,
        as_device: Callable[[ToySession], DeviceSession] = HostDeviceSession,
    ) -> None:
        limits = Limits(max_len, max_batch, num_draft, built_branches or max(1, num_branches))
        target, draft, ids = tables(
            table_seed, vocab=vocab, agreement=agreement, draft_vocab=draft_vocab
        )
        self.table, self.device, self.max_len = target, device, max_len
        work = work or work_on(device)
        self.mailbox = Exchange(device, None, max_batch, num_draft, vocab_size=vocab)
        self.target_session = ToySession(TARGET, target, limits, device)
        self.target = ResidentTarget(
            as_device(self.target_session), device, work, self.mailbox, min_tokens=min_tokens
        )
        near, far = target_side(device.create_stream("target"), self.target), None
        if mode != "ar":
            known = draft_knows or vocab
            kept = slice(known) if ids is None else ids < known
            draft = np.ascontiguousarray(draft[:known, :known, kept])
            ids = None if ids is None else ids[kept]
            self.draft_session = ToySession(DRAFT, draft, limits, device, vocab_map=ids)
            self.draft = ResidentDraft(
                as_device(self.draft_session),
                device,
                work,
                self.mailbox,
                num_draft=num_draft,
                num_branches=num_branches,
                statistics=OutcomeStatistics(num_draft, max(1, num_branches)),
            )
            stream = device.create_stream("draft")
            stream.launch(self.draft.load, label="load")
            far = draft_side(stream, self.draft)
        self.scheduler = Scheduler(
            device,
            mode,
            near,
            far,
            max_batch=max_batch,
            policy=policy,
            on_round=on_round,
            draft_timeout_s=draft_timeout_s,
        )

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        *,
        max_tokens: int = 24,
        stop_ids: Sequence[int] = (),
    ) -> tuple[list[Request], Stats]:
        requests = [
            Request(prompt, law, max_tokens, frozenset(stop_ids), self.max_len)
            for prompt, law in zip(prompts, params, strict=True)
        ]
        stats = self.scheduler.run(requests)
        return requests, stats
