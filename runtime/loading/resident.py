"""A pair whose target runs on a GPU: rounds are kernels in device memory, the host enqueues."""

from __future__ import annotations

from collections.abc import Callable

from engines.bundle import Bundle
from engines.manifest import EngineManifest
from engines.tensors import DType
from runtime.loading.engines import GpuEngines, Tell
from runtime.loading.hardware import Hardware
from runtime.loading.probing import on_stream
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.resident import (
    Exchange,
    HostDraft,
    HostDraftExchange,
    ResidentDraft,
    ResidentTarget,
    Work,
    work_on,
)
from runtime.resident.laws import MAX_BANNED_IDS
from runtime.sampling.api import rule
from runtime.sampling.noise import NoiseCache
from runtime.scheduler import OnRound, Scheduler
from runtime.side import draft_side, target_side
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.plan import Policy
from runtime.spec.statistics import OutcomeStatistics


class ResidentPair:
    """See ``runtime.loading.api.Pair``."""

    max_banned_ids: int | None = MAX_BANNED_IDS
    follows_text: bool = False
    note: str | None = None

    def __init__(
        self,
        bundle: Bundle,
        placement: Placement,
        *,
        num_draft: int,
        num_branches: int,
        max_batch: int,
        hardware: Hardware,
        fallback: Fallback = Fallback.ZERO,
        drafter: Drafter = Drafter.MODEL,
        memo: Memo | None = None,
        policy: Policy | None = None,
        on_round: OnRound | None = None,
        draft_timeout_s: float | None = None,
        tell: Tell | None = None,
    ) -> None:
        """``max_batch`` slots are allocated. ``fallback`` and ``drafter`` are of a draft on the
        CPU; all others have ``zero`` and the model. For ``policy``, ``on_round`` and
        ``draft_timeout_s`` see ``Scheduler``.

        Raises MissingDependencyError, BundleIncompatibleError, BackendError, CapacityError and
        DeviceError.
        """
        self.bundle = bundle
        self.placement = placement
        self._num_draft = num_draft
        self._num_branches = num_branches
        self._num_slots = max_batch
        self._drafter = drafter
        self._hardware = hardware
        self._draft_timeout_s = draft_timeout_s
        self._forget: list[Callable[[], None]] = []
        self.engines = GpuEngines(
            bundle,
            placement,
            num_draft=num_draft,
            num_slots=max_batch,
            memo=memo or Memo(),
            hardware=hardware,
            tell=tell or (lambda _line: None),
        )
        self.note = self.engines.invariance.note
        try:
            self._open(fallback, policy, on_round)
        except BaseException:
            self.close()
            raise

    def _open(self, fallback: Fallback, policy: Policy | None, on_round: OnRound | None) -> None:
        engines, placement = self.engines, self.placement
        engines.warm_up(self._num_draft, self._num_branches)
        work = work_on(engines.target_device, engines.target_stream, self._hardware.kernels)
        mailbox = self._mailbox()
        self.target = ResidentTarget(
            engines.target_session,
            engines.target_device,
            work,
            mailbox,
            min_tokens=engines.invariance.min_tokens,
        )
        self._forget.append(self.target.phases.forget)
        far = None
        if placement.mode != "ar":
            draft = (
                self._draft_on_cpu(mailbox, fallback)
                if isinstance(mailbox, HostDraftExchange)
                else self._draft_on_gpu(mailbox, work)
            )
            far = draft_side(engines.draft_stream, draft)
        self.scheduler = Scheduler(
            engines.target_device,
            placement.mode,
            target_side(engines.target_stream, self.target, reopen=engines.reopen_target_stream),
            far,
            max_batch=self._num_slots,
            policy=policy,
            on_round=on_round,
            draft_timeout_s=self._draft_timeout_s,
        )

    def _mailbox(self) -> Exchange | HostDraftExchange:
        engines, has_draft = self.engines, self.placement.mode != "ar"
        size, vocab = self._num_slots, self.bundle.target.model.output_vocab
        logits = _logits_of(self.bundle.target)
        if has_draft and not self.placement.devices.draft.is_gpu:
            return HostDraftExchange(
                engines.target_device, size, self._num_draft, vocab_size=vocab, logits=logits
            )
        return Exchange(
            engines.target_device,
            engines.draft_device if has_draft else None,
            size,
            self._num_draft,
            vocab_size=vocab,
            logits=logits,
        )

    def _draft_on_gpu(self, mailbox: Exchange, target_work: Work) -> ResidentDraft:
        engines = self.engines
        assert engines.draft_session is not None
        work = target_work
        if engines.draft_device is not engines.target_device:
            work = work_on(engines.draft_device, engines.draft_stream, self._hardware.kernels)
        draft = ResidentDraft(
            engines.draft_session,
            engines.draft_device,
            work,
            mailbox,
            num_draft=self._num_draft,
            num_branches=self._num_branches,
            statistics=self._statistics(),
        )
        self._forget.append(draft.phases.forget)
        on_stream(engines.draft_stream, draft.load, "load the draft's tables")
        return draft

    def _draft_on_cpu(self, mailbox: HostDraftExchange, fallback: Fallback) -> HostDraft:
        engines = self.engines
        assert engines.draft_host_session is not None
        capacity = max(64, self._num_slots * (2 * self._num_draft + 2))
        noise = NoiseCache(self.bundle.target.model.vocab_size, capacity)
        return HostDraft(
            engines.draft_host_session,
            rule("coupled", noise),
            mailbox,
            device=engines.target_device,
            num_draft=self._num_draft,
            num_branches=self._num_branches,
            statistics=self._statistics(),
            fallback=fallback,
            drafter=self._drafter,
        )

    def _statistics(self) -> OutcomeStatistics:
        figures = self.bundle.manifest.draft_figures
        ranks = figures.ranks if figures else ()
        return OutcomeStatistics(self._num_draft, max(1, self._num_branches), ranks)

    def close(self) -> None:
        """Free engines, caches, streams and devices; idempotent."""
        self.engines.close(before_engines=self._forget_graphs)

    def _forget_graphs(self) -> None:
        """Captured graphs go before the engines that they call."""
        while self._forget:
            self._forget.pop()()


def _logits_of(engine: EngineManifest) -> DType:
    return next(spec.dtype for spec in engine.outputs if spec.name == "logits")
