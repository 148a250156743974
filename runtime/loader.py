"""Loading a bundle's engines onto streams of the host device."""

from __future__ import annotations

from collections.abc import Callable

from engines.bundle import Bundle
from engines.manifest import DRAFT, TARGET, EngineManifest
from runtime.backends.onnxruntime import OrtSession, runtime_identity
from runtime.decode import Decoder
from runtime.device.api import Device, Stream
from runtime.device.host import HostDevice
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.round import draft_side, target_side
from runtime.sampling.api import rule
from runtime.sampling.noise import NoiseCache
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.mailbox import Mailbox
from runtime.workers.probe import Invariance, probe_invariance
from runtime.workers.target import TargetWorker

BACKEND = "onnxruntime"


class LoadedPair:
    """The engines of one bundle on their streams, and the decoder over them. Close it."""

    def __init__(
        self,
        bundle: Bundle,
        placement: Placement,
        *,
        verify: str,
        num_draft: int,
        num_branches: int,
        memo: Memo | None = None,
    ) -> None:
        self.bundle = bundle
        self.placement = placement
        self.device: Device = HostDevice()
        try:
            self._load(verify, num_draft, num_branches, memo or Memo())
        except BaseException:
            self.device.close()
            raise

    def _load(self, verify: str, num_draft: int, num_branches: int, memo: Memo) -> None:
        bundle, mode = self.bundle, self.placement.mode
        target, draft = bundle.target, bundle.draft
        max_batch = bundle.manifest.limits.max_batch
        noise = NoiseCache(target.model.vocab_size, max(64, max_batch * (2 * num_draft + 2)))
        chosen = rule(verify, noise)
        self.mailbox = Mailbox(self.device, max_batch, num_draft)
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
            )
            far = draft_side(self.draft_stream, self.draft)
        self.decoder = Decoder(self.device, mode, near, far, max_batch=max_batch)

    def _open(self, role: str, manifest: EngineManifest, num_threads: int) -> OrtSession:
        return OrtSession(
            self.bundle.path / role,
            manifest,
            self.device,
            num_threads=num_threads,
            num_slots=manifest.limits.max_batch,
        )

    def _probe(self, memo: Memo, num_draft: int) -> Invariance:
        """The probe's answer, remembered for this build, machine, runtime and thread count."""
        key = ":".join(
            (
                "invariance",
                self.bundle.manifest.build_key,
                runtime_identity(),
                f"{len(self.placement.target_cores)} threads",
                f"{num_draft + 1} tokens",
            )
        )
        known = memo.get(key)
        if known in (1, 2):
            return Invariance(min_tokens=int(known))
        found: list[Invariance] = []
        on_stream(
            self.target_stream,
            lambda: found.append(probe_invariance(self.target_session, num_draft + 1)),
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
