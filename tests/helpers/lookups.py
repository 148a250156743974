"""Batches of the draft worker, and the same as the arrays of a lookup."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from engines.manifest import KvLayout, Limits
from engines.tensors import DType
from plugins.lookup import kernel
from plugins.lookup.reference import Sizes
from runtime.backends.api import CallShape
from runtime.device.host import HostDevice
from runtime.kv.capacity import least_trunk_rows
from runtime.kv.slots import SlotRef
from runtime.sampling.api import CoupledRule
from runtime.sampling.params import SamplingParams
from runtime.spec.outcome import Outcome, Prepared
from runtime.spec.statistics import OutcomeStatistics
from runtime.workers.draft import DraftWorker
from runtime.workers.entry import Entry
from runtime.workers.mailbox import Kind, Mailbox

Arrays = dict[str, np.ndarray[Any, Any]]


def random_sizes(rng: np.random.Generator) -> Sizes:
    branches, drafts = int(rng.integers(1, 70)), int(rng.integers(0, 17))
    return Sizes(
        num_branches=branches,
        num_draft=drafts,
        draft_vocab=int(rng.integers(1, 12)),
        target_scratch=int(rng.integers(0, 3)),
        draft_scratch=branches * drafts,
        num_ranks=int(rng.integers(0, 9)),
    )


class DraftSession:
    """A draft engine that only notes what it is asked to do."""

    def __init__(self, num_rows: int, sizes: Sizes, max_len: int) -> None:
        trunk_rows = least_trunk_rows(max_len, sizes.num_draft)
        self.manifest = SimpleNamespace(
            limits=Limits(max_len, num_rows, sizes.num_draft, sizes.num_branches),
            kv=KvLayout(1, 1, 1, DType.FLOAT32, sizes.draft_scratch, trunk_rows),
            model=SimpleNamespace(vocab_size=sizes.draft_vocab, output_vocab=1),
        )
        self.copies: dict[int, tuple[slice, int]] = {}

    def copy_rows(self, slot: int, source: slice, to: int) -> None:
        self.copies[slot] = source, to

    def bind_rows(self, _: int) -> None:
        pass

    def prepare(self, shape: CallShape) -> SimpleNamespace:
        num_slots, width = shape.num_slots, shape.num_tokens
        kv = self.manifest.kv
        return SimpleNamespace(
            shape=shape,
            tokens=np.zeros((num_slots, width), np.int64),
            positions=np.zeros((num_slots, width), np.int64),
            write_at=np.zeros(num_slots, np.int64),
            mask=np.zeros((num_slots, width, kv.scratch_rows + kv.trunk_rows), bool),
            logit_rows=np.zeros((num_slots, shape.num_logits), np.int64),
            run=lambda: None,
        )


class Batch:
    """One batch as the draft worker keeps it, and the same as arrays."""

    def __init__(self, rng: np.random.Generator, num_rows: int, sizes: Sizes) -> None:
        self.sizes = sizes
        self.arrays = arrays = kernel.random_arrays(rng, num_rows, sizes)
        # The worker has one round for all rows, and drafts K tokens for every branch.
        arrays["round"][:] = rng.integers(1, 9)
        arrays["cache_round"][:] = arrays["round"] - (rng.random(num_rows) < 0.2)
        arrays["cache_depth"][:] = sizes.num_draft
        max_len = int(arrays["limit"].max())
        self.session = DraftSession(num_rows, sizes, max_len)
        self.mailbox = Mailbox(HostDevice(), num_rows, sizes.num_draft)
        self.worker = DraftWorker(
            self.session,
            CoupledRule(),
            self.mailbox,
            num_draft=sizes.num_draft,
            num_branches=sizes.num_branches,
            statistics=OutcomeStatistics(sizes.num_draft, sizes.num_branches),
        )
        self.worker.round = int(arrays["round"][0])
        for row in range(num_rows):
            if arrays["active"][row]:
                self._add_text(row)
            else:
                self._add_dummy(rng, row)

    def lease(self, row: int) -> SlotRef:
        return SlotRef(row, int(self.arrays["generation"][row]))

    def outcome(self, row: int) -> Outcome:
        return Outcome(int(self.arrays["accepted"][row]), int(self.arrays["bonus"][row]))

    def _add_text(self, row: int) -> None:
        """A text that runs, its proposal as judged and its branches as prepared."""
        arrays = self.arrays
        length, num_draft = int(arrays["length"][row]), int(arrays["num_draft"][row])
        tokens = arrays["verify_tokens"][row].tolist()
        limit = int(arrays["limit"][row])
        self.worker.admit(self.lease(row), Entry(tokens[:1], SamplingParams(), limit))
        state = self.worker.rows[row]
        state.tokens = [0] * (length - 1) + tokens[:1]
        state.kind, state.proposal = Kind(arrays["kind"][row]), tuple(tokens[1 : 1 + num_draft])
        state.trunk = length + num_draft
        state.candidates = arrays["candidates"][row].tolist()
        outcome = self.outcome(row)
        generation = int(arrays["generation"][row])
        self.mailbox.decide(row, generation, state.kind, state.proposal, *outcome)
        prepared = {
            Outcome(
                int(arrays["cache_accepted"][row, branch]), int(arrays["cache_bonus"][row, branch])
            ): Prepared(branch, tuple(arrays["cache_tokens"][:, row, branch].tolist()))
            for branch in range(arrays["cache_branches"][row])
        }
        made_for = SlotRef(row, int(arrays["cache_generation"][row]))
        self.worker.cache.store(made_for, int(arrays["cache_round"][row]), prepared)

    def _add_dummy(self, rng: np.random.Generator, row: int) -> None:
        """A slot without a text, or one whose prompt is being fed."""
        arrays = self.arrays
        num_fed = int(arrays["length"][row]) - 1
        if rng.random() < 0.5:
            num_fed = arrays["generation"][row] = 0
            arrays["length"][row] = 1
        else:
            prompt = [0] * (num_fed + 2)
            entry = Entry(prompt, SamplingParams(), int(arrays["limit"][row]))
            self.worker.admit(self.lease(row), entry)
            self.worker.rows[row].trunk = num_fed
        self.mailbox.decide(row, int(arrays["generation"][row]), Kind.SKIP, (), 0, 0)
