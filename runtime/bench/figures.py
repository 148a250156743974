"""What is said of many samples, and what a machine looked like while they were taken."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from engines.errors import UsageError

STAT = Path("/proc/stat")
STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class Spread:
    """Of ``num`` samples: median, quartiles and the 99th percentile, in the samples' unit."""

    num: int
    low: float
    median: float
    high: float
    p99: float


def spread(samples: Sequence[float] | np.ndarray) -> Spread:
    """Percentiles are interpolated linearly. Raises UsageError without a sample."""
    if not len(samples):
        raise UsageError("nothing was measured; ask for more rounds or tokens")
    low, median, high, p99 = np.percentile(np.asarray(samples, np.float64), [25, 50, 75, 99])
    return Spread(len(samples), float(low), float(median), float(high), float(p99))


def resident_bytes(statm: Path = STATM) -> int | None:
    """Memory of this process that is in use; None where the system does not tell."""
    try:
        pages = int(statm.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


class Neighbours:
    """How many cores all other processes use, from its making on. Figures taken while that is
    not next to 0 are those of a shared machine."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._began = perf_counter(), _busy_s(stat), _own_s()

    def cores(self) -> float | None:
        """Mean cores since then; None where the system does not tell. Children of this process
        count as others until they have ended."""
        began, busy, own = self._began
        now = _busy_s(self._stat)
        if busy is None or now is None:
            return None
        others = (now - busy) - (_own_s() - own)
        return max(0.0, others / max(1e-9, perf_counter() - began))


def _busy_s(stat: Path) -> float | None:
    """Seconds that all cores worked for anybody since the machine started."""
    try:
        label, *ticks = stat.read_text().split("\n", 1)[0].split()
        user, nice, system = map(int, ticks[:3])
    except (OSError, ValueError):
        return None
    if label != "cpu":
        return None
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
