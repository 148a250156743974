"""Both engines of a bundle on streams of the host device."""

from __future__ import annotations

from functools import partial

from engines.bundle import Bundle
from engines.manifest import DRAFT, TARGET, EngineManifest
from runtime.backends.onnxruntime import OrtSession, runtime_identity
from runtime.device.api import Device, Stream
from runtime.device.host import HostDevice
from runtime.loading.probing import on_stream, remembered_probe
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.sampling.api import Rule, rule
from runtime.sampling.noise import NoiseCache
from runtime.scheduler import OnRound, Scheduler
from runtime.side import draft_side, target_side
from runtime.spec.fallback import Fallback
from runtime.spec.length import Lengths
from runtime.spec.plan import Policy
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker


class LoadedPair:
    """The engines of one bundle on their streams, and the scheduler over them. Close it."""

    max_banned_ids: int | None = None
    note: str | None = None

    def __init__(
        self,
        bundle: Bundle,
        placement: Placement,
        *,
        verify: str,
        num_draft: int,
        num_branches: int,
        max_batch: int | None = None,
        fallback: Fallback = Fallback.ZERO,
        saguaro: float = 1.0,
        lengths: Lengths | None = None,
        memo: Memo | None = None,
        device: Device | None = None,
        policy: Policy | None = None,
        on_round: OnRound | None = None,
        draft_timeout_s: float | None = None,
    ) -> None:
        """``max_batch`` slots are allocated (default: as many as the bundle was built for).
        ``device`` becomes the pair's own, and is closed with it. For ``fallback``, ``lengths``,
        ``saguaro``, ``policy``, ``on_round`` and ``draft_timeout_s`` see ``DraftWorker``,
        ``RatioRule`` and ``Scheduler``.
        """
        self.bundle = bundle
        self.placement = placement
        self.device: Device = HostDevice() if device is None else device
        self._num_slots = max_batch or bundle.manifest.limits.max_batch
        try:
            chosen = self._rule(verify, num_draft, saguaro)
            self._load_target(chosen, num_draft, memo or Memo())
            if placement.mode != "ar":
                self._load_draft(chosen, num_draft, num_branches, fallback, lengths)
            self.scheduler = Scheduler(
                self.device,
                placement.mode,
                target_side(
                    self.target_stream, self.target, reopen=partial(self._open_stream, TARGET)
                ),
                None if placement.mode == "ar" else draft_side(self.draft_stream, self.draft),
                max_batch=self._num_slots,
                policy=policy,
                on_round=on_round,
                draft_timeout_s=draft_timeout_s,
            )
        except BaseException:
            self.device.close()
            raise

    def _rule(self, verify: str, num_draft: int, saguaro: float) -> Rule:
        capacity = max(64, self._num_slots * (2 * num_draft + 2))
        noise = NoiseCache(self.bundle.target.model.vocab_size, capacity)
        return rule(verify, noise, saguaro=saguaro)

    def _load_target(self, chosen: Rule, num_draft: int, memo: Memo) -> None:
        self.mailbox = Mailbox(self.device, self._num_slots, num_draft)
        self.target_stream = self._open_stream(TARGET)
        threads = len(self.placement.target_cores)
        self.target_session = self._open(TARGET, self.bundle.target, threads)
        on_stream(self.target_stream, self.target_session.load, "load target")
        self.invariance = remembered_probe(
            self.target_stream,
            self.target_session,
            memo,
            build_key=self.bundle.manifest.build_key,
            executor=f"{runtime_identity()}:{threads} threads",
            num_tokens=num_draft + 1,
            num_slots=self._num_slots,
        )
        self.target = TargetWorker(
            self.target_session, chosen, self.mailbox, min_tokens=self.invariance.min_tokens
        )

    def _load_draft(
        self,
        chosen: Rule,
        num_draft: int,
        num_branches: int,
        fallback: Fallback,
        lengths: Lengths | None,
    ) -> None:
        draft = self.bundle.draft
        assert draft is not None
        self.draft_stream = self._open_stream(DRAFT)
        # One thread: two thread pools on the same cores spin against each other.
        self.draft_session = self._open(DRAFT, draft, 1)
        on_stream(self.draft_stream, self.draft_session.load, "load draft")
        figures = self.bundle.manifest.draft_figures
        self.draft = DraftWorker(
            self.draft_session,
            chosen,
            self.mailbox,
            num_draft=num_draft,
            num_branches=num_branches,
            statistics=OutcomeStatistics(
                num_draft, max(1, num_branches), figures.ranks if figures else ()
            ),
            fallback=fallback,
            lengths=lengths,
        )

    def _open_stream(self, role: str) -> Stream:
        cores = self.placement.target_cores if role == TARGET else self.placement.draft_cores
        return self.device.create_stream(role, cores=cores)

    def _open(self, role: str, manifest: EngineManifest, num_threads: int) -> OrtSession:
        return OrtSession(
            self.bundle.path / role,
            manifest,
            self.device,
            num_threads=num_threads,
            num_slots=self._num_slots,
        )

    def close(self) -> None:
        """Free engines, caches and threads; idempotent."""
        self.device.close()
        self.target_session.close()
        if self.placement.mode != "ar":
            self.draft_session.close()
