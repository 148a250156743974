"""A backend whose engines cost next to nothing, because their answers are known beforehand.

A target with a prescribed text answers with that text's token for each position, whatever it is
fed. A draft answers with the same logits everywhere, and so always drafts its favourite: that is
accepted where the text has it, and a bonus token's rank is that of the text's token in the draft's
logits. So acceptance and hits follow the law that the text was drawn from, and all time that a
round takes is the runtime's own. Used to measure that time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from time import sleep, thread_time

import numpy as np

from engines.errors import BackendError
from engines.manifest import TARGET, Limits
from runtime.backends.api import CallShape
from runtime.backends.caches import RowBuckets
from runtime.backends.host import HostSession
from runtime.backends.toy import toy_manifest
from runtime.device.api import Device


class PrescribedSession(HostSession["PrescribedStep"]):
    """See ``runtime.backends.api.Session``. The caches are real and moved as asked, but no call
    writes or reads them."""

    def __init__(
        self,
        role: str,
        logits: np.ndarray,
        limits: Limits,
        device: Device,
        *,
        vocab_size: int | None = None,
        vocab_map: np.ndarray | None = None,
        text: np.ndarray | None = None,
        call_s: float = 0.0,
    ) -> None:
        """``logits`` float32 [output vocabulary] is the answer of every row. With ``text``, int64
        [positions] in the engine's own ids, the largest one is that of the token that follows; it
        begins anew behind its end. ``vocab_map`` as in ``ToySession``. A call sleeps ``call_s``
        seconds."""
        manifest = toy_manifest(role, vocab_size or len(logits), len(logits), limits)
        name = None if vocab_map is None else "vocab_map.npy"
        self.manifest = replace(manifest, backend="prescribed", vocab_map=name)
        self.vocab_map = vocab_map
        self.busy_s = 0.0
        self._logits = logits.astype(np.float32)
        self._peak = float(self._logits.max()) + 1.0
        self._text: list[int] | None = None if text is None else text.tolist()
        favourite = int(self._logits.argmax())
        self._favourite = favourite if vocab_map is None else int(vocab_map[favourite])
        self._call_s = call_s
        super().__init__(RowBuckets(device, self.manifest, limits.max_batch))

    def run_step(self, step: PrescribedStep) -> None:
        """Answer one call; ``busy_s`` counts the processor's seconds spent on it."""
        started = thread_time()
        if max(step.write_at.tolist()) + step.shape.num_tokens > self._caches.rows:
            self._caches.zero()
            raise BackendError(f"{self.manifest.role}: a write leaves the cache")
        if self._call_s:
            sleep(self._call_s)
        if self._text is not None:
            self._follow_text(step, self._text)
        self.busy_s += thread_time() - started

    def _make_step(self, shape: CallShape) -> PrescribedStep:
        slots, tokens, rows = shape.num_slots, shape.num_tokens, shape.num_logits
        logits = np.empty((slots, rows, len(self._logits)), np.float32)
        logits[:] = self._logits
        return PrescribedStep(
            shape=shape,
            tokens=np.zeros((slots, tokens), np.int64),
            positions=np.zeros((slots, tokens), np.int64),
            write_at=np.zeros(slots, np.int64),
            mask=np.zeros((slots, tokens, self._caches.rows), bool),
            logit_rows=np.zeros((slots, rows), np.int64),
            num_draft=np.zeros(slots, np.int64),
            logits=logits,
            accepted=np.zeros(slots, np.int64),
            next=np.zeros(slots, np.int64),
            sample=np.full((slots, rows), self._favourite, np.int64),
            _session=self,
        )

    def _follow_text(self, step: PrescribedStep, text: list[int]) -> None:
        # Plain lists: for the few cells of a round they are quicker than arrays.
        for at in step.peaks:
            step.logits[at] = self._logits[at[2]]
        step.peaks.clear()
        tokens, positions = step.tokens.tolist(), step.positions.tolist()
        num_draft = step.num_draft.tolist()
        for row, queries in enumerate(step.logit_rows.tolist()):
            best = [text[(positions[row][query] + 1) % len(text)] for query in queries]
            for place, token in enumerate(best):
                step.logits[row, place, token] = self._peak
                step.peaks.append((row, place, token))
            if self.manifest.role != TARGET:
                step.sample[row] = best if self.vocab_map is None else self.vocab_map[best]
                continue
            accepted = 0
            while (
                accepted < num_draft[row] and tokens[row][queries[accepted + 1]] == best[accepted]
            ):
                accepted += 1
            step.accepted[row], step.next[row] = accepted, best[accepted]


@dataclass(slots=True)
class PrescribedStep:
    """See ``runtime.backends.api.Step``. ``peaks`` are the cells that the text raised last."""

    shape: CallShape
    tokens: np.ndarray
    positions: np.ndarray
    write_at: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray
    num_draft: np.ndarray
    logits: np.ndarray
    accepted: np.ndarray
    next: np.ndarray
    sample: np.ndarray
    _session: PrescribedSession
    peaks: list[tuple[int, int, int]] = field(default_factory=list)

    def run(self) -> None:
        self._session.run_step(self)
