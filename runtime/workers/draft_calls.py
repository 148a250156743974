"""The draft engine's calls: rows that feed their trunks, and the choice of a drafted token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from runtime.backends.api import CallShape, KeepingSession, Step
from runtime.kv.layout import SlotLayout
from runtime.sampling.api import Rule
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import SparseLaw
from runtime.workers.calls import place_rows
from runtime.workers.draft_row import DraftRow


class DraftCalls:
    """One session, its layout and the rule, as all of drafting uses them."""

    def __init__(self, session: KeepingSession, rule: Rule) -> None:
        self.session = session
        self.rule = rule
        # The scratch rows were laid out for the built W; using fewer branches keeps the stride.
        self.layout = SlotLayout(session.manifest.kv, session.manifest.limits.max_branches)
        self._vocab_size = session.manifest.model.vocab_size
        self.kept = [0] * session.manifest.limits.max_batch
        """Positions that each free slot still holds, of its last text."""

    def bind(self, num_positions: int) -> None:
        """Make room for that many positions of text, of what was built at most."""
        rows = self.layout.kv.trunk_rows
        self.session.bind_rows(self.layout.rows_for(min(num_positions, rows)))

    def known(self, tokens: Sequence[int]) -> list[int]:
        """``tokens`` with 0 for ids that the draft has no embedding of (a target may be padded)."""
        vocab_size = self._vocab_size
        return [token if token < vocab_size else 0 for token in tokens]

    def feed(
        self, rows: Sequence[DraftRow | None], fed: Sequence[list[int]], num_logits: int, first: int
    ) -> Step:
        """Feed each row's tokens to the end of its trunk; logits of the last ``num_logits``.

        ``rows`` are those of the slots from ``first`` on. A row that feeds nothing, and a free
        slot, is a dummy behind what it holds. Shorter rows are padded on the right; their last
        logits row is their last token. The trunks grow.
        """
        width = max(map(len, fed))
        kept = self.kept[first : first + len(rows)]
        held = [num if row is None else row.trunk for num, row in zip(kept, rows, strict=True)]
        starts = np.array(held, np.int64)
        self.session.bind_rows(self.layout.rows_for(int(starts.max()) + width))
        step = self.session.prepare(CallShape(first, len(rows), width, num_logits))
        step.tokens[:] = [[*self.known(tokens), *[0] * (width - len(tokens))] for tokens in fed]
        place_rows(step, self.layout, starts)
        counts = np.array([len(tokens) for tokens in fed], np.int64)
        last_first = np.arange(num_logits, 0, -1)
        np.maximum(counts[:, None] - last_first, 0, out=step.logit_rows)
        step.run()
        for row, tokens in zip(rows, fed, strict=True):
            if row is not None:
                row.trunk += len(tokens)
        return step

    def choose(
        self,
        logits: np.ndarray,
        sample: int,
        params: SamplingParams,
        *,
        position: int,
        block_start: int,
        num_prepared: int,
    ) -> tuple[int, SparseLaw | None]:
        """Draft the token of ``position``, of a block that begins at ``block_start``.

        The block is judged as a whole by the engine or by the rule, so ``sample``, the engine's
        own choice, is taken for the whole block or not at all.
        """
        if params.chooses_in_graph(block_start):
            return sample, None
        return self.rule.draft_token(
            logits, params, position, self.session.vocab_map, num_prepared=num_prepared
        )
