"""Outcomes as rows of numbers in device memory, as ``plugins.lookup`` writes them."""

from __future__ import annotations

from plugins.lookup.reference import NUM_EXTRA, RANK, WAS_PREPARED
from runtime.workers import mailbox as mail
from runtime.workers.mailbox import EMITTED, Kind


def outcome_width(num_draft: int) -> int:
    """Numbers of an outcome of up to ``num_draft`` drafted tokens."""
    return EMITTED + num_draft + 1 + NUM_EXTRA


def unjudged(num_draft: int) -> list[int]:
    """The outcome of a row that no round has judged yet. What a slot's last text left there would
    be taken for one of the next."""
    outcome = [0] * outcome_width(num_draft)
    outcome[mail.KIND] = Kind.SKIP
    outcome[WAS_PREPARED] = outcome[RANK] = -1
    return outcome
