"""Texts that join one after the other, while others are decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from runtime.request import Request
from runtime.scheduler import Scheduler, Ticket


def decode_as_they_come(
    scheduler: Scheduler,
    max_len: int,
    texts: Iterable[tuple[dict[str, Any], int]],
    cancelled: int | None = None,
) -> list[tuple[Ticket, list[int], dict[str, Any]]]:
    """Decode all to their ends: each text, the tokens that were handed on, its options.

    ``texts``: options of a request, and the steps that are made before the next one joins. The
    first is ``cancelled`` so many steps after the last has joined.
    """
    tickets = []
    for options, steps in texts:
        handed: list[int] = []
        request = Request(max_len=max_len, **options)
        tickets.append((scheduler.submit(request, handed.extend), handed, options))
        for _ in range(steps):
            scheduler.step()
    for _ in range(cancelled or 0):
        scheduler.step()
    if cancelled is not None:
        scheduler.cancel(tickets[0][0])
    while scheduler.step():
        pass
    return tickets
