"""What both sides are told of a text that joins the batch, and how far they are with its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.errors import CapacityError
from engines.profiles import PROMPT_CHUNK
from runtime.kv.slots import SlotRef
from runtime.sampling.params import SamplingParams
from runtime.sampling.text_law import Constraint


@dataclass(frozen=True, slots=True)
class Entry:
    """One text. ``prompt`` has at least one token; its last one is fed by the first round.

    limit         tokens that prompt and text may have together; no draft goes beyond it
    stop_ids      tokens that end the text; nothing is drafted behind them
    num_logprobs  see ``runtime.request.Request``
    constraint    a grammar's state in this text, the target's from here on
    num_kept      positions of the prompt, whole blocks, whose rows the target's slot holds already;
                  the draft's may hold fewer
    """

    prompt: Sequence[int]
    params: SamplingParams
    limit: int
    stop_ids: frozenset[int] = frozenset()
    num_logprobs: int | None = None
    constraint: Constraint | None = None
    num_kept: int = 0

    def chunk(self, start: int) -> Sequence[int]:
        """The tokens of the prompt's chunk at ``start``; its last token is not part of any."""
        return self.prompt[start : min(start + PROMPT_CHUNK, len(self.prompt) - 1)]


@dataclass(frozen=True, slots=True)
class Resumed:
    """A text that went on while the draft rested: ``tokens`` are prompt and text so far, of which
    the target's cache holds ``num_fed``: all but the last of a running text, else the chunks of
    the prompt that were fed."""

    slot: SlotRef
    tokens: Sequence[int]
    num_fed: int
    is_running: bool


def require_kept(entry: Entry, found: int) -> None:
    """Raise CapacityError unless the slot holds the rows that a text means to go on with."""
    if found < entry.num_kept:
        raise CapacityError(
            f"a text begins behind {entry.num_kept} positions of its slot, which holds {found}"
        )


def require_free(found: SlotRef | None, asked: SlotRef) -> None:
    """Raise CapacityError when another text still holds the slot."""
    if found is not None:
        raise CapacityError(
            f"lease {asked.generation} of slot {asked.index} begins before lease "
            f"{found.generation} was retired"
        )


def require_lease(found: SlotRef | None, asked: SlotRef) -> None:
    """Raise CapacityError unless the row of a slot belongs to the lease that is asked for."""
    if found != asked:
        holder = "nobody" if found is None else f"lease {found.generation}"
        raise CapacityError(
            f"lease {asked.generation} of slot {asked.index} is over, the row belongs to {holder}"
        )
