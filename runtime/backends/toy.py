"""A backend whose law is known exactly, and which checks every mask, row and position it is given.

The model is a second-order Markov chain: the logits after tokens (a, b) are ``table[a, b]``. Each
call writes (token, position) pairs into cache rows exactly as a real engine writes keys and
values, and reads its context back through the mask. A query that does not attend each position
of its own past exactly once raises, so a wrong mask, row or length cannot pass unseen. Wrong
tokens at the right positions (another branch's, say) give the answer to that other text.
Used by the exactness tests and wherever a runtime is wanted without weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engines.errors import BackendError
from engines.manifest import DRAFT, TARGET, EngineManifest, KvLayout, Limits, ModelFacts, Source
from engines.profiles import length_buckets, trunk_rows
from engines.tensors import DType
from plugins.verify.reference import verify
from runtime.backends.api import CallShape
from runtime.backends.caches import RowBuckets
from runtime.backends.host import HostSession
from runtime.backends.outputs import Outputs
from runtime.device.api import Device


def toy_manifest(role: str, vocab_size: int, output_vocab: int, limits: Limits) -> EngineManifest:
    """A manifest for a toy engine; one layer, one head, width 2 (a token and its position)."""
    scratch = limits.num_draft * limits.max_branches if role == DRAFT else 0
    kv = KvLayout(1, 1, 2, DType.FLOAT32, scratch, trunk_rows(limits.max_len, limits.num_draft))
    return EngineManifest(
        schema=1,
        role=role,
        backend="toy",
        precision="fp32",
        model=ModelFacts(
            family="toy",
            num_parameters=vocab_size**2 * output_vocab,
            vocab_size=vocab_size,
            output_vocab=output_vocab,
            hidden_size=1,
            num_layers=1,
            num_heads=1,
            eos_token_ids=(),
            bos_token_id=None,
        ),
        limits=limits,
        kv=kv,
        lengths=length_buckets(kv.rows),
        inputs=(),
        outputs=(),
        plugins=(),
        vocab_map=None if output_vocab == vocab_size else "vocab_map.npy",
        plan=None,
        source=Source("toy", "toy"),
        builder={},
        files=(),
    )


class ToySession(HostSession["ToyStep"]):
    """An engine over ``table``, float32 logits [V, V, output vocabulary]; after the first token
    of a text the row ``table[0, token]`` is used.

    ``vocab_map`` (int64 [output vocabulary], target ids) makes it a reduced draft.
    """

    def __init__(
        self,
        role: str,
        table: np.ndarray,
        limits: Limits,
        device: Device,
        *,
        vocab_map: np.ndarray | None = None,
    ) -> None:
        vocab_size, _, output_vocab = table.shape
        self.manifest = toy_manifest(role, vocab_size, output_vocab, limits)
        self.table = table.astype(np.float32)
        self.vocab_map = vocab_map
        self.num_runs = 0
        super().__init__(RowBuckets(device, self.manifest, limits.max_batch))
        self._outputs = Outputs(self.manifest, limits.max_batch)

    def _make_step(self, shape: CallShape) -> ToyStep:
        return ToyStep.empty(self, shape, self._caches.rows, self._outputs)

    def run_step(self, step: ToyStep) -> None:
        """Run one call; on failure the caches are zeroed and BackendError is raised."""
        self.num_runs += 1
        try:
            self._answer(step)
        except BackendError:
            self._caches.zero()
            raise

    def _answer(self, step: ToyStep) -> None:
        """Write the call's rows, then answer each wanted row from what it attends."""
        for row in range(step.shape.num_slots):
            slot = step.shape.first_slot + row
            cells = self._caches.view(0)[slot, 0]  # [rows, 2]
            first = int(step.write_at[row])
            if first + step.shape.num_tokens > len(cells):
                raise BackendError(f"slot {slot}: a write at row {first} leaves the cache")
            written = slice(first, first + step.shape.num_tokens)
            cells[written, 0] = step.tokens[row]
            cells[written, 1] = step.positions[row]
            for index, query in enumerate(step.logit_rows[row]):
                context = self._context(cells, step, row, int(query))
                step.logits[row, index] = self.table[context]
        if self.manifest.role == TARGET:
            drafts = np.take_along_axis(step.tokens, step.logit_rows[:, 1:], axis=1)
            step.accepted[:], step.next[:] = verify(step.logits, drafts, step.num_draft)
        else:
            chosen = step.logits.argmax(axis=-1)
            step.sample[:] = chosen if self.vocab_map is None else self.vocab_map[chosen]

    def _context(self, cells: np.ndarray, step: ToyStep, row: int, query: int) -> tuple[int, int]:
        position = int(step.positions[row, query])
        attended = cells[step.mask[row, query]]
        if sorted(attended[:, 1]) == list(range(position + 1)):
            by_position = attended[np.argsort(attended[:, 1]), 0].astype(int)
            before = by_position[-2] if position else 0
            return int(before), int(by_position[-1])
        raise BackendError(
            f"{self.manifest.role}: the query at position {position} attends positions "
            f"{sorted(int(p) for p in attended[:, 1])}"
        )


@dataclass(slots=True)
class ToyStep:
    """See ``runtime.backends.api.Step``."""

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
    _session: ToySession

    @classmethod
    def empty(cls, session: ToySession, shape: CallShape, rows: int, outputs: Outputs) -> ToyStep:
        num_slots, num_tokens, num_logits = shape.num_slots, shape.num_tokens, shape.num_logits

        def output(name: str, *dims: int, dtype: npt.DTypeLike = np.int64) -> np.ndarray:
            return outputs.array(shape.copy, name, dims, dtype)

        vocab = session.table.shape[2]
        return cls(
            shape=shape,
            tokens=np.zeros((num_slots, num_tokens), np.int64),
            positions=np.zeros((num_slots, num_tokens), np.int64),
            write_at=np.zeros(num_slots, np.int64),
            mask=np.zeros((num_slots, num_tokens, rows), bool),
            logit_rows=np.zeros((num_slots, num_logits), np.int64),
            num_draft=np.zeros(num_slots, np.int64),
            logits=output("logits", num_slots, num_logits, vocab, dtype=np.float32),
            accepted=output("accepted", num_slots),
            next=output("next", num_slots),
            sample=output("sample", num_slots, num_logits),
            _session=session,
        )

    def run(self) -> None:
        self._session.run_step(self)
