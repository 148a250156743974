"""Loading a bundle's engines onto streams of the host device."""

from __future__ import annotations

from collections.abc import Callable

from engines.bundle import Bundle
from engines.manifest import DRAFT, TARGET, EngineManifest
from runtime.backends.onnxruntime import OrtSession, runtime_identity
from runtime.device.api import Device, Stream
from runtime.device.host import HostDevice
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.round import draft_side, target_side
from runtime.sampling.api import Rule, rule
from runtime.sampling.noise import NoiseCache
from runtime.scheduler import OnRound, Scheduler
from runtime.spec.fallback import Fallback
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.probe import Invariance, probe_invariance
from runtime.workers.target import TargetWorker

BACKEND = "onnxruntime"


class LoadedPair:
    """The engines of one bundle on their streams, and the scheduler over them. Close it."""

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
        memo: Memo | None = None,
        device: Device | None = None,
        on_round: OnRound | None = None,
    ) -> None:
        """``max_batch`` slots are allocated (default: as many as the bundle was built for).
        ``device`` becomes the pair's own, and is closed with it. For ``fallback``, ``saguaro``
        and ``on_round`` see ``DraftWorker``, ``RatioRule`` and ``Scheduler``.
        """
        self.bundle = bundle
        self.placement = placement
        self.device: Device = HostDevice() if device is None else device
        self._num_slots = max_batch or bundle.manifest.limits.max_batch
        try:
            chosen = self._rule(verify, num_draft, saguaro)
            self._load(chosen, num_draft, num_branches, fallback, memo or Memo(), on_round)
        except BaseException:
            self.device.close()
            raise

    def _rule(self, verify: str, num_draft: int, saguaro: float) -> Rule:
        capacity = max(64, self._num_slots * (2 * num_draft + 2))
        noise = NoiseCache(self.bundle.target.model.vocab_size, capacity)
        return rule(verify, noise, saguaro=saguaro)

    def _load(
        self,
        chosen: Rule,
        num_draft: int,
        num_branches: int,
        fallback: Fallback,
        memo: Memo,
        on_round: OnRound | None,
    ) -> None:
        bundle, mode = self.bundle, self.placement.mode
        target, draft = bundle.target, bundle.draft
        self.mailbox = Mailbox(self.device, self._num_slots, num_draft)
        self.target_stream = self.device.create_stream("target", cores=self.placement.target_cores)
        threads = len(self.placement.target_cores)
        self.target_session = self._open(TARGET, target, threads)
        on_stream(self.target_stream, self.target_session.load, "load target")
        self.invariance = self._probe(memo, num_draft)
        self.target = TargetWorker(
            self.target_session, chosen, self.mailbox, min_tokens=self.invariance.min_tokens
        )
        near, far = target_side(self.target_stream, self.target), None
        if mode != "ar":
            assert draft is not None
            self.draft_stream = self.device.create_stream("draft", cores=self.placement.draft_cores)
            # One thread: two thread pools on the same cores spin against each other.
            self.draft_session = self._open(DRAFT, draft, 1)
            on_stream(self.draft_stream, self.draft_session.load, "load draft")
            figures = bundle.manifest.draft_figures
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
            )
            far = draft_side(self.draft_stream, self.draft)
        self.scheduler = Scheduler(
            self.device, mode, near, far, max_batch=self._num_slots, on_round=on_round
        )

    def _open(self, role: str, manifest: EngineManifest, num_threads: int) -> OrtSession:
        return OrtSession(
            self.bundle.path / role,
            manifest,
            self.device,
            num_threads=num_threads,
            num_slots=self._num_slots,
        )

    def _probe(self, memo: Memo, num_draft: int) -> Invariance:
        """The probe's answer, remembered for this build, machine, runtime, threads and batch."""
        key = ":".join(
            (
                "invariance at both ends of a call",
                self.bundle.manifest.build_key,
                runtime_identity(),
                f"{len(self.placement.target_cores)} threads",
                f"{num_draft + 1} tokens",
                f"{self._num_slots} texts",
            )
        )
        known = memo.get(key)
        if known in (1, 2):
            return Invariance(min_tokens=int(known))
        found: list[Invariance] = []
        on_stream(
            self.target_stream,
            lambda: found.append(
                probe_invariance(self.target_session, num_draft + 1, self._num_slots)
            ),
            "probe",
        )
        memo.put(key, found[0].min_tokens)
        return found[0]

    def close(self) -> None:
        """Free engines, caches and threads; idempotent."""
        self.device.close()
        self.target_session.close()
        if self.placement.mode != "ar":
            self.draft_session.close()


def on_stream(stream: Stream, work: Callable[[], None], label: str) -> None:
    """Run ``work`` on a stream and wait for it; its error is raised here."""
    stream.launch(work, label=label)
    stream.sync()
