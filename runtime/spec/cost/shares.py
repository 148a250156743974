"""How often a row hits, and how often it waits, in the long run.

Where rows do not wait for each other (``zero``, ``lookup``, a batch of one), a row is a chain of
two states. Under ``jit`` a row that missed sits a round out and is drafted beside it, so that no
other row waits; only where no row would have drafts are all drafted at once. So rows do depend on
each other, and the state is how many of the batch bring a hit's drafts, new drafts, or nothing:

    (a, b, w) --t of the a + b that are judged hit--> (t, w, a + b - t)     if t + w > 0
                                                  --> (0, B, 0)             if t + w = 0

t is a sum of two binomials. For batches up to MANY this chain is solved as it stands. For larger
ones a round in which nobody has drafts is next to impossible; without it, rows are independent.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

MANY = 8


def hit_share(after_hit: float, after_miss: float) -> float:
    """Share of rounds that begin with a hit, from the hit rates after a hit and after a miss."""
    return after_miss / (1 - after_hit + after_miss) if after_miss else 0.0


class WaitingShares(NamedTuple):
    """Of a row's rounds: begun with a hit's drafts, with drafts for which all rows waited, with
    drafts made while the row sat out, and sat out. They sum to 1."""

    hit: float
    at_once: float
    waited: float
    sat_out: float


@lru_cache(maxsize=4096)
def waiting_shares(after_hit: float, after_miss: float, batch: int) -> WaitingShares:
    """Shares in the long run. ``after_hit`` and ``after_miss`` (new drafts) are the hit rates."""
    if batch == 1:
        hits = hit_share(after_hit, after_miss)
        return WaitingShares(hits, 1 - hits, 0.0, 0.0)
    if batch > MANY:
        return _independent(after_hit, after_miss)
    return _counted(after_hit, after_miss, batch)


def _independent(after_hit: float, after_miss: float) -> WaitingShares:
    """Each round with new drafts follows one that was sat out, and the rest are hits."""
    if after_hit == 1:
        return WaitingShares(1.0, 0.0, 0.0, 0.0)
    hits_per_wait = after_miss / (1 - after_hit)
    waited = 1 / (2 + hits_per_wait)
    return WaitingShares(hits_per_wait * waited, 0.0, waited, waited)


class _Moves(NamedTuple):
    """The states (a, b) of a batch, int64 [S, 2], and every move between them as parallel arrays:
    from state ``source`` (``old``, ``new``), by ``hits``, to state ``into``. ``start`` is where
    all were drafted at once, and ``everyone`` are the moves that lead there for that reason."""

    states: np.ndarray
    source: np.ndarray
    old: np.ndarray
    new: np.ndarray
    hits: np.ndarray
    into: np.ndarray
    start: int
    everyone: np.ndarray


@lru_cache(maxsize=MANY)
def _moves(batch: int) -> _Moves:
    states = [(old, new) for old in range(batch + 1) for new in range(batch + 1 - old)]
    place = {state: index for index, state in enumerate(states)}
    start = place[0, batch]
    found = [
        (
            *(index, old, new, hits),
            place[hits, batch - old - new] if hits + batch - old - new else start,
            hits + batch - old - new == 0,
        )
        for index, (old, new) in enumerate(states)
        for hits in range(old + new + 1)
    ]
    *columns, everyone = np.array(found).T
    source, old, new, hits, into = columns
    return _Moves(np.array(states), source, old, new, hits, into, start, everyone.astype(bool))


def _counted(after_hit: float, after_miss: float, batch: int) -> WaitingShares:
    known = _moves(batch)
    of_old, of_new = _binomials(batch, after_hit), _binomials(batch, after_miss)
    laws = np.zeros((batch + 1,) * 3)  # of a + b coins: how many hit
    for hits in range(batch + 1):
        laws[:, :, hits:] += of_old[:, hits, None, None] * of_new[None, :, : batch + 1 - hits]
    probabilities = laws[known.old, known.new, known.hits]
    size = len(known.states)
    moves = np.zeros((size, size))
    moves[known.source, known.into] = probabilities
    law = _long_run(moves, known.start)
    hit, new = (law @ known.states / batch).tolist()
    all_miss = known.everyone
    at_once = float(law[known.source[all_miss]] @ probabilities[all_miss])
    return WaitingShares(hit, at_once, max(0.0, new - at_once), max(0.0, 1 - hit - new))


def _binomials(most: int, probability: float) -> np.ndarray:
    """Laws of the sum of 0, 1, ... ``most`` coins: float64 [most + 1, most + 1]."""
    laws = np.zeros((most + 1, most + 1))
    laws[0, 0] = 1.0
    for coins in range(1, most + 1):
        laws[coins] = (1 - probability) * laws[coins - 1]
        laws[coins, 1:] += probability * laws[coins - 1, :-1]
    return laws


def _long_run(moves: np.ndarray, start: int) -> np.ndarray:
    """Shares of the states of a chain that begins in ``start``: float64 [states].

    Chains of perfect hits or perfect misses have more than one solution, of which only one is
    reached. A restart, once in 1e7 rounds, tells which.
    """
    restart = 1e-7
    begun = np.zeros(len(moves))
    begun[start] = restart
    return np.linalg.solve((np.eye(len(moves)) - (1 - restart) * moves).T, begun)
