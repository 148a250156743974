"""Who asks when: so many clients, each with its next request, or so many requests a second."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from runtime.bench.serving.client import Outcome

Send = Callable[[str, float], Awaitable[Outcome]]
"""(prompt, when the run began) -> what came of it."""
Done = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Level:
    """How much is asked. ``concurrency``: clients that each wait for their answer (closed loop).
    ``request_rate``: requests a second, whatever has been answered (open loop, Poisson)."""

    concurrency: int | None = None
    request_rate: float | None = None

    def __str__(self) -> str:
        if self.concurrency is not None:
            return f"{self.concurrency} client{'s' if self.concurrency > 1 else ''}"
        return f"{self.request_rate:g} a second"


def arrivals(num: int, request_rate: float, seed: int) -> list[float]:
    """Seconds at which requests of a Poisson process come: gaps are exponential, their mean is
    1 / rate; scaled so that the last comes at ``num`` / rate, as vLLM's benchmark does."""
    source = random.Random(seed)
    gaps = [-math.log(1.0 - source.random()) for _ in range(num)]
    total = sum(gaps) or 1.0
    scale = num / request_rate / total
    reached, times = 0.0, []
    for gap in gaps:
        reached += gap * scale
        times.append(reached)
    return times


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a level, in the order of the prompts; ``duration_s`` from the first request to
    the last answer. ``most_at_once``: requests under way together."""

    outcomes: tuple[Outcome, ...]
    duration_s: float
    most_at_once: int


async def run_level(
    level: Level, prompts: Sequence[str], send: Send, *, seed: int, on_done: Done
) -> Ran:
    """Ask every prompt once. Times are the event loop's."""
    clock = asyncio.get_running_loop().time
    begun = clock()
    now = most = 0

    async def one(prompt: str) -> Outcome:
        nonlocal now, most
        now += 1
        most = max(most, now)
        outcome = await send(prompt, begun)
        now -= 1
        on_done(outcome)
        return outcome

    if level.concurrency is not None:
        outcomes = await _closed(level.concurrency, prompts, one)
    else:
        assert level.request_rate is not None
        times = arrivals(len(prompts), level.request_rate, seed)
        outcomes = await _open(times, prompts, one, begun)
    return Ran(tuple(outcomes), clock() - begun, most)


async def _closed(
    num_clients: int, prompts: Sequence[str], one: Callable[[str], Awaitable[Outcome]]
) -> list[Outcome]:
    found: dict[int, Outcome] = {}
    queue: Iterator[tuple[int, str]] = iter(enumerate(prompts))

    async def client() -> None:
        for index, prompt in queue:  # shared: the next one goes to who is free first
            found[index] = await one(prompt)

    await asyncio.gather(*(client() for _ in range(min(num_clients, len(prompts)))))
    return [found[index] for index in range(len(prompts))]


async def _open(
    times: Sequence[float],
    prompts: Sequence[str],
    one: Callable[[str], Awaitable[Outcome]],
    begun: float,
) -> list[Outcome]:
    clock = asyncio.get_running_loop().time

    async def later(at_s: float, prompt: str) -> Outcome:
        await asyncio.sleep(max(0.0, begun + at_s - clock()))
        return await one(prompt)

    return await asyncio.gather(*map(later, times, prompts))
