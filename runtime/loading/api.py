"""What loading gives: a pair of engines that can run requests."""

from __future__ import annotations

from typing import Protocol

from runtime.scheduler import Scheduler


class Pair(Protocol):
    """The engines of one bundle on their devices, and the scheduler over them."""

    scheduler: Scheduler
    note: str | None
    """What the user should know of the engines; None where there is nothing."""
    max_banned_ids: int | None
    """How many tokens ``min_tokens`` can keep away; None for any number."""
    follows_text: bool
    """Whether it serves biases, penalties, forbidden words and grammars."""

    def close(self) -> None:
        """Free engines, caches, streams and devices; idempotent."""
