"""How many may be in the house: a bounded queue in front of the engines, and its door."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

from runtime.serve.errors import ApiError, draining

LONGEST_WAIT_S = 60
SMOOTHING = 0.2
"""Weight of the newest answer in the mean of how long answers take."""


class Gate:
    """Counts choices from their admission to their end. Used on the event loop alone."""

    def __init__(self, *, max_batch: int, max_waiting: int) -> None:
        """``max_batch`` choices are decoded at once; ``max_waiting`` more may wait."""
        self.max_batch = max_batch
        self.capacity = max_batch + max_waiting
        self.num_inside = 0
        self.is_draining = False
        self._usual_s = 1.0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def admit(self, num_choices: int) -> Place:
        """Room for so many choices. Raises ApiError: 503 while draining, 400 for more than there
        can ever be room for, 429 where there is none now."""
        if self.is_draining:
            raise draining()
        if num_choices > self.capacity:
            raise ApiError(
                400,
                f"the request asks for {num_choices} answers (prompts x n); this server holds at "
                f"most {self.capacity} at once: ask for fewer",
                code="too_many_choices",
                param="n",
            )
        if self.num_inside + num_choices > self.capacity:
            raise ApiError(
                429,
                f"the server is busy: {self.num_inside} answers are running or waiting, of at most "
                f"{self.capacity}; try again later",
                kind="rate_limit_error",
                code="queue_full",
                retry_after_s=self.retry_after_s(num_choices),
            )
        self.num_inside += num_choices
        self._is_empty.clear()
        return Place(self, num_choices)

    def retry_after_s(self, num_choices: int) -> int:
        """When there should be room: those too many, a batch at a time, at their usual pace."""
        num_too_many = self.num_inside + num_choices - self.capacity
        wait_s = math.ceil(num_too_many / self.max_batch) * self._usual_s
        return max(1, min(LONGEST_WAIT_S, math.ceil(wait_s)))

    def leave(self, num_choices: int, took_s: float | None) -> None:
        """``took_s``: seconds that they were decoded for; None where they never were."""
        self.num_inside -= num_choices
        if took_s is not None:
            self._usual_s += SMOOTHING * (took_s - self._usual_s)
        if not self.num_inside:
            self._is_empty.set()

    async def wait_until_empty(self) -> None:
        await self._is_empty.wait()


@dataclass(slots=True)
class Place:
    """Room that one request was given; ``leave`` gives it back, once."""

    gate: Gate
    num_choices: int
    has_left: bool = False

    def leave(self, took_s: float | None = None) -> None:
        if not self.has_left:
            self.has_left = True
            self.gate.leave(self.num_choices, took_s)
