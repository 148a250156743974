"""Both engines of a bundle on streams of the host device."""

from __future__ import annotations

from functools import partial

from engines.bundle import Bundle
from engines.manifest import DRAFT, TARGET, EngineManifest
from runtime.backends.onnxruntime import OrtSession, runtime_identity
from runtime.device.api import Device, Stream
from runtime.device.host import HostDevice
from runtime.loading.probing import on_stream, remembered_probe, remembered_rows
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.sampling.api import Rule, rule
from runtime.sampling.noise import NoiseCache
from runtime.scheduler import OnRound, Scheduler
from runtime.side import Side, draft_side, target_side
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.length import Lengths
from runtime.spec.plan import Policy
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.api import Drafts
from runtime.workers.draft import DraftWorker
from runtime.workers.lookup import LookupWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.target import TargetWorker


class LoadedPair:
    """The engines of one bundle on their streams, and the scheduler over them. Close it."""

    max_banned_ids: int | None = None
    follows_text: bool = True
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
        drafter: Drafter = Drafter.MODEL,
        memo: Memo | None = None,
        device: Device | None = None,
        policy: Policy | None = None,
        on_round: OnRound | None = None,
        draft_timeout_s: float | None = None,
        prefix_reuse: bool = True,
    ) -> None:
        """``max_batch`` slots are allocated (default: as many as the bundle was built for).
        ``device`` becomes the pair's own, and is closed with it. For ``fallback``, ``lengths``,
        ``drafter``, ``saguaro``, ``policy``, ``on_round`` and ``draft_timeout_s`` see
        ``DraftWorker``, ``RatioRule`` and ``Scheduler``. With drafter LOOKUP no draft engine is
        loaded, and lookups are work of the target's stream.
        """
        self.bundle = bundle
        self.placement = placement
        self.device: Device = HostDevice() if device is None else device
        self._num_slots = max_batch or bundle.manifest.limits.max_batch
        self.has_draft = placement.mode != "ar" and drafter is not Drafter.LOOKUP
        self.draft: DraftWorker | LookupWorker | None = None
        try:
            chosen = self._rule(verify, num_draft, saguaro)
            self._load_target(chosen, num_draft, memo or Memo())
            if prefix_reuse and not self._rows_are_alike(num_draft, memo or Memo()):
                prefix_reuse = False
                self.note = (
                    "beginnings that texts share are computed anew for each: on this machine the "
                    "target's rows depend on the call that writes them"
                )
            if self.has_draft:
                self._load_draft(chosen, num_draft, num_branches, fallback, lengths, drafter)
            elif placement.mode != "ar":
                self.draft = LookupWorker(self.device, self.mailbox)
            self.scheduler = Scheduler(
                self.device,
                placement.mode,
                target_side(
                    self.target_stream,
                    self.target,
                    # Not bound to this pair, which would be in a cycle and outlive its closing.
                    reopen=partial(_open_stream, self.device, placement, TARGET),
                ),
                self._draft_side(),
                self._lookup_side(drafter),
                max_batch=self._num_slots,
                policy=policy,
                on_round=on_round,
                # Lookups are on the target's stream: they fail or hang as it does.
                draft_timeout_s=draft_timeout_s if self.has_draft else None,
                prefix_reuse=prefix_reuse,
            )
        except BaseException:
            self.device.close()
            raise

    def _draft_side(self) -> Side[Drafts] | None:
        if self.draft is None:
            return None
        return draft_side(self.draft_stream if self.has_draft else self.target_stream, self.draft)

    def _lookup_side(self, drafter: Drafter) -> Side[Drafts] | None:
        """For rounds that pass the draft by, where it is one of two sources."""
        if not isinstance(self.draft, DraftWorker) or drafter is not Drafter.BOTH:
            return None
        worker = LookupWorker(self.device, self.mailbox, self.draft.choice)
        return draft_side(self.target_stream, worker)

    def _rule(self, verify: str, num_draft: int, saguaro: float) -> Rule:
        capacity = max(64, self._num_slots * (2 * num_draft + 2))
        noise = NoiseCache(self.bundle.target.model.vocab_size, capacity)
        return rule(verify, noise, saguaro=saguaro)

    def _load_target(self, chosen: Rule, num_draft: int, memo: Memo) -> None:
        self.mailbox = Mailbox(self.device, self._num_slots, num_draft)
        self.target_stream = _open_stream(self.device, self.placement, TARGET)
        threads = len(self.placement.target_cores)
        self._executor = f"{runtime_identity()}:{threads} threads"
        self.target_session = self._open(TARGET, self.bundle.target, threads)
        on_stream(self.target_stream, self.target_session.load, "load target")
        self.invariance = remembered_probe(
            self.target_stream,
            self.target_session,
            memo,
            build_key=self.bundle.manifest.build_key,
            executor=self._executor,
            num_tokens=num_draft + 1,
            num_slots=self._num_slots,
        )
        self.target = TargetWorker(
            self.target_session, chosen, self.mailbox, min_tokens=self.invariance.min_tokens
        )

    def _rows_are_alike(self, num_draft: int, memo: Memo) -> bool:
        return remembered_rows(
            self.target_stream,
            self.target_session,
            memo,
            build_key=self.bundle.manifest.build_key,
            executor=self._executor,
            num_tokens=num_draft + 1,
            min_tokens=self.invariance.min_tokens,
        )

    def _load_draft(
        self,
        chosen: Rule,
        num_draft: int,
        num_branches: int,
        fallback: Fallback,
        lengths: Lengths | None,
        drafter: Drafter,
    ) -> None:
        draft = self.bundle.draft
        assert draft is not None
        self.draft_stream = _open_stream(self.device, self.placement, DRAFT)
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
            drafter=drafter,
            alpha=figures.ranks[0] if figures else None,
        )

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
        if self.has_draft:
            self.draft_session.close()


def _open_stream(device: Device, placement: Placement, role: str) -> Stream:
    cores = placement.target_cores if role == TARGET else placement.draft_cores
    return device.create_stream(role, cores=cores)
