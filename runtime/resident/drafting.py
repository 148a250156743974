"""What the draft enqueues in a round: engine calls, and the kernels before and behind them.

Everything here is the same for each round of one shape, so it can be captured: what changes from
round to round is in device memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from plugins.chain import kernel as chain
from plugins.fork import kernel as fork
from plugins.kv_commit import kernel as kv_commit
from plugins.layer import DeviceTensor
from plugins.lookup import kernel as lookup
from runtime.backends.api import DeviceStep
from runtime.kv.layout import SlotLayout
from runtime.resident.calls import mask_branches, mask_trunk
from runtime.resident.draft_rows import DraftRows
from runtime.resident.kernels import Work
from runtime.resident.laws import DraftLaws
from runtime.resident.slabs import Slab


class Drafting:
    """Enqueues for ``num_rows`` rows, from slot 0 on."""

    def __init__(
        self, work: Work, memory: DraftRows, laws: DraftLaws, layout: SlotLayout, vocab_size: int
    ) -> None:
        self._work = work
        self._memory = memory
        self._laws = laws
        self._layout = layout
        self._vocab_size = vocab_size

    def root(self, step: DeviceStep, *, truncates: bool) -> None:
        """Feed the one token that each trunk lacks; rank what may follow."""
        rows, prepared = self._memory.rows, self._memory.prepared
        nbytes = 8 * step.shape.num_slots
        for source, target in (
            (rows["root_tokens"], step.tokens),
            (rows["root_positions"], step.positions),
            (rows["root_write_at"], step.write_at),
            (prepared["zeros"], step.logit_rows),
        ):
            self._work.copy(source, target.address, nbytes)
        self._run(step, step.positions.address, truncates=truncates)

    def branches(
        self, steps: Sequence[DeviceStep], num_rows: int, num_branches: int, *, truncates: bool
    ) -> None:
        """Behind the root pass: choose the outcomes, and draft a token a branch with each step."""
        prepared = self._memory.prepared
        self._fork(fork.FORK, num_rows, num_branches, len(steps))
        chosen = prepared["fork_tokens"]
        for depth, step in enumerate(steps):
            self._fork(
                fork.STEP,
                num_rows,
                num_branches,
                depth,
                chosen=chosen,
                step_tokens=step.tokens.address,
                step_positions=step.positions.address,
                step_write_at=step.write_at.address,
                step_logit_rows=step.logit_rows.address,
            )
            mask_branches(self._work, step, self._layout, prepared["lengths"], depth)
            step.enqueue()
            slab = 8 * depth * self._memory.num_slots * num_branches
            chosen = prepared["cache_tokens"] + slab
            self._laws.enqueue(
                step.logits,
                positions=step.positions.address,
                sample_to=chosen,
                lists=prepared["branch_lists"] + slab * self._laws.num_candidates,
                truncates=truncates,
            )

    def chain(self, root: DeviceStep, step: DeviceStep, num_draft: int, *, truncates: bool) -> None:
        """Draft tokens one after the other, and propose them."""
        rows, prepared = self._memory.rows, self._memory.prepared
        num_rows = root.shape.num_slots
        fields = {
            **rows.fields("active", "length", "limit", "last_tokens"),
            **self._memory.proposal.fields("kind", "num_draft", "verify_tokens"),
            "num_rows": num_rows,
            "num_wanted": num_draft,
            "max_draft": self._memory.max_draft,
            "draft_vocab": self._vocab_size,
            "draft_scratch": self._layout.kv.scratch_rows,
        }
        inputs = {
            "root_tokens": root.tokens.address,
            "root_positions": root.positions.address,
            "root_write_at": root.write_at.address,
            "root_logit_rows": root.logit_rows.address,
            "sample_positions": prepared["sample_positions"],
        }
        self._chain(chain.ROOT_ENTRY, num_rows, {**fields, **inputs})
        self._run(root, prepared["sample_positions"], truncates=truncates)
        for index in range(num_draft):
            following = {
                "sample": prepared["sample"],
                "index": index,
                "step_tokens": step.tokens.address,
                "step_positions": step.positions.address,
                "step_write_at": step.write_at.address,
                "step_logit_rows": step.logit_rows.address,
            }
            is_last = index == num_draft - 1
            if is_last:
                following = {"sample": prepared["sample"], "index": index}
            self._chain(chain.NEXT_ENTRY, num_rows, {**fields, **following})
            if not is_last:
                self._run(step, step.positions.address, truncates=truncates)

    def lookup(self, verdict: Slab, num_rows: int, num_branches: int) -> None:
        """Take a verdict in: texts go on, hits propose. Nothing is prepared where
        ``num_branches`` is 0."""
        memory = self._memory
        cache = {
            name: memory.prepared[name]
            for name in memory.prepared.shapes
            if name.startswith("cache_")
        }
        self._work.launch(
            "lookup",
            lookup.ENTRY,
            {
                **memory.rows.addresses,
                **memory.proposal.addresses,
                **verdict.addresses,
                **(cache if num_branches else {}),
                "num_rows": num_rows,
                "num_slots": memory.num_slots,
                "num_ranks": memory.num_ranks,
                "num_branches": num_branches,
                "max_draft": memory.max_draft,
                "draft_vocab": self._vocab_size,
                "draft_scratch": self._layout.kv.scratch_rows,
            },
            num_blocks=num_rows,
            num_threads=lookup.NUM_THREADS,
        )

    def commit(
        self, caches: Sequence[DeviceTensor], table: int, num_rows: int, num_branches: int
    ) -> None:
        """Move the winners' cache rows to the trunk and keep their candidates. ``table`` is the
        address of the caches' addresses."""
        _, num_heads, cache_rows, head_dim = caches[0].shape
        self._work.launch(
            "kv_commit",
            kv_commit.ENTRY,
            {
                **self._memory.rows.fields("winner", "commit_at"),
                "num_draft": self._memory.proposal["num_draft"],
                "caches": table,
                "num_caches": len(caches),
                "num_rows": num_rows,
                "num_heads": num_heads,
                "cache_rows": cache_rows,
                "row_bytes": head_dim * caches[0].dtype.itemsize,
                "num_branches": self._layout.num_branches,
            },
            num_blocks=len(caches) * num_rows,
            num_threads=kv_commit.NUM_THREADS,
        )
        self._fork(fork.KEEP, num_rows, num_branches, 0)

    def _run(self, step: DeviceStep, positions: int, *, truncates: bool) -> None:
        """A trunk call whose inputs are filled in, one token drafted a row."""
        prepared = self._memory.prepared
        mask_trunk(self._work, step, self._layout)
        step.enqueue()
        self._laws.enqueue(
            step.logits,
            positions=positions,
            sample_to=prepared["sample"],
            lists=prepared["root_list"],
            truncates=truncates,
        )

    def _fork(self, entry: str, num_rows: int, num_branches: int, depth: int, **call: int) -> None:
        memory = self._memory
        arrays = {**memory.rows.addresses, **memory.prepared.addresses, **memory.plan.addresses}
        arrays |= memory.proposal.fields("generation", "num_draft")
        names = {each.name for each in fork.ARGS.fields}
        self._work.launch(
            "fork",
            entry,
            {
                **{name: address for name, address in arrays.items() if name in names},
                **call,
                "num_rows": num_rows,
                "num_slots": memory.num_slots,
                "num_branches": num_branches,
                "max_draft": memory.max_draft,
                "num_ranks": memory.num_ranks,
                "draft_vocab": self._vocab_size,
                "stride": self._layout.num_branches,
                "depth": depth,
            },
            num_blocks=num_rows,
            num_threads=fork.NUM_THREADS,
        )

    def _chain(self, entry: str, num_rows: int, fields: dict[str, int]) -> None:
        num_blocks = -(-num_rows // chain.NUM_THREADS)
        self._work.launch(
            "chain", entry, fields, num_blocks=num_blocks, num_threads=chain.NUM_THREADS
        )
