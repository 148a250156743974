"""Spans of work and marks of moments, on one clock; and how much of the drafting was hidden."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

MAX_RECORDS = 1_000_000
"""Records kept of each kind, about 100 MB of them; later ones are counted and dropped."""


@dataclass(frozen=True, slots=True)
class Span:
    """Work of one lane. Times in seconds; the clock's zero means nothing."""

    lane: str
    label: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Moment:
    """Something that happened at one time, such as a hit, with its facts."""

    label: str
    at_s: float
    facts: Mapping[str, int | float | str]


@dataclass(slots=True)
class Timeline:
    """Filled by several threads at once; read when they have ended.

    ``num_dropped`` counts what came after ``max_records``.
    """

    max_records: int = MAX_RECORDS
    spans: list[Span] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    num_dropped: int = 0
    _lock: Lock = field(default_factory=Lock)

    def span(self, lane: str, label: str, start_s: float, end_s: float) -> None:
        """Keep a span; fits ``runtime.device.traced.OnWork``."""
        with self._lock:
            if len(self.spans) < self.max_records:
                self.spans.append(Span(lane, label, start_s, end_s))
            else:
                self.num_dropped += 1

    def moment(self, label: str, at_s: float, **facts: int | float | str) -> None:
        with self._lock:
            if len(self.moments) < self.max_records:
                self.moments.append(Moment(label, at_s, facts))
            else:
                self.num_dropped += 1


@dataclass(frozen=True, slots=True)
class Overlap:
    """Seconds that a lane worked while another worked too (hidden), and while it did not."""

    hidden_s: float
    exposed_s: float

    @property
    def hidden_share(self) -> float:
        """Hidden / all of the lane's work; 0 without any."""
        total = self.hidden_s + self.exposed_s
        return self.hidden_s / total if total else 0.0


def overlap(
    spans: Iterable[Span],
    *,
    of: str,
    labels: Iterable[str],
    behind: str,
    behind_labels: Iterable[str],
) -> Overlap:
    """How much of the work of lane ``of`` that bears one of ``labels`` was done while the lane
    ``behind`` was at work that bears one of ``behind_labels``.

    Drafting is hidden while the target verifies: a hit's drafting costs nothing (section 2.2 of
    arXiv 2603.03251 calls it the primary speculator's latency below one verification).
    """
    wanted, cover = set(labels), set(behind_labels)
    kept = list(spans)
    busy = _merged((s.start_s, s.end_s) for s in kept if s.lane == behind and s.label in cover)
    worked = _merged((s.start_s, s.end_s) for s in kept if s.lane == of and s.label in wanted)
    hidden = _common(worked, busy)
    return Overlap(hidden, sum(end - start for start, end in worked) - hidden)


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union as disjoint intervals in order."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _common(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> float:
    """Length of the intersection of two unions, each disjoint and in order."""
    total, i, j = 0.0, 0, 0
    while i < len(first) and j < len(second):
        start = max(first[i][0], second[j][0])
        end = min(first[i][1], second[j][1])
        total += max(0.0, end - start)
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return total
