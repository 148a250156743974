"""How long calls take on this machine, by their shape: measured once, remembered per build.

Other programs disturb it, in two ways that are told apart from slow engines. A call that was
interrupted now and then scatters: calls of all shapes take turns, so that a disturbance meets all
of them, and their quartiles are compared with their medians. A core that is shared all the time
gives steady times that are too long: the thread that makes the call then works for less of the
time than it takes. What was disturbed is measured again, now and when the bundle is loaded the next
times; the least disturbed of these measurements is kept.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter, thread_time

import numpy as np

from engines.bundle import Bundle
from engines.codec import DecodeError, decode, encode
from runtime.backends.api import CallShape, Session
from runtime.backends.onnxruntime import runtime_identity
from runtime.device.api import Stream
from runtime.device.cores import available_cores, cpu_quota
from runtime.kv.layout import SlotLayout
from runtime.loader import LoadedPair, on_stream
from runtime.memo import Memo
from runtime.placement import place
from runtime.spec.controller.pace import GAP_S
from runtime.spec.cost import Grid, PairTimes
from runtime.workers.calls import fill_trunk

FEWEST_PASSES, MOST_PASSES = 5, 9
"""Calls of each shape; a pass is one of each."""
BUDGET_S = 1.0
"""No more passes than the fewest are begun after so long."""
MOST_TRIES, MOST_LOADS = 2, 3
"""Measurements while they are disturbed: at once, and at how many loads of the bundle."""
SCATTER, STOLEN = 0.10, 0.15
"""More than this is a disturbance: the quartiles' distance in medians, and the share of time in
which the calling thread did not work. Idle machines show 1 to 4 % and less than 2 %."""
CONTEXT = 192
NO_CALLS = Grid((1,), (1,), ((0.0,),))
"""Of a draft that is not there."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Calls of both engines under one placement."""

    target: Grid
    draft: Grid

    @property
    def times(self) -> PairTimes:
        """For the cost model. An engine was measured while the other one was idle."""
        return PairTimes.apart(self.target, self.draft, GAP_S)


@dataclass(frozen=True, slots=True)
class Quality:
    """See SCATTER and STOLEN."""

    scatter: float
    stolen: float

    @property
    def is_quiet(self) -> bool:
        """Nothing disturbed the measurement."""
        return self.scatter <= SCATTER and self.stolen <= STOLEN


@dataclass(frozen=True, slots=True)
class MachineTimes:
    """``together``: the target on all cores, so the engines take turns. ``apart``: on those that
    ``ssd`` leaves it; None where that was not asked for, or the machine was too busy to compare.
    ``num_loads``: at how many loads of the bundle it was measured."""

    together: Measured
    apart: Measured | None
    quality: Quality
    num_loads: int = 1


def machine_key(bundle: Bundle) -> str:
    """What times hang on: the build, the executor, the cores."""
    return ":".join(
        (
            bundle.manifest.build_key,
            runtime_identity(),
            f"cores {available_cores()} of {cpu_quota()}",
        )
    )


def measure(
    bundle: Bundle,
    num_draft: int,
    num_branches: int,
    batch: int,
    memo: Memo | None = None,
    announce: Callable[[], None] | None = None,
) -> MachineTimes:
    """Median seconds by shape, from the memo or measured now (some seconds).

    ``num_branches`` 0 asks for no ``apart``. Calls of a draft that the bundle does not have take no
    time. ``announce`` is called before anything is measured.
    """
    memo = memo or Memo()
    key = f"calls:{machine_key(bundle)}:K {num_draft} W {num_branches} B {batch}"
    known = _remembered(memo, key)
    if known is not None and (known.quality.is_quiet or known.num_loads >= MOST_LOADS):
        return known
    if announce is not None:
        announce()
    taking_turns = "ar" if bundle.draft is None else "sd"
    together, quality = _measure(bundle, taking_turns, num_draft, num_branches, batch, memo)
    apart = None
    if num_branches and quality.is_quiet:
        apart, other = _measure(bundle, "ssd", num_draft, num_branches, batch, memo)
        if not other.is_quiet:
            apart, quality = None, other
    found = MachineTimes(together, apart, quality)
    if known is not None:
        least = found if _noise(quality) <= _noise(known.quality) else known
        found = replace(least, num_loads=known.num_loads + 1)
    memo.put(key, encode(found))
    return found


def _remembered(memo: Memo, key: str) -> MachineTimes | None:
    known = memo.get(key)
    try:
        return None if known is None else decode(MachineTimes, known)
    except DecodeError:
        return None


def _noise(quality: Quality) -> float:
    return quality.scatter + quality.stolen


def _measure(
    bundle: Bundle, mode: str, num_draft: int, num_branches: int, batch: int, memo: Memo
) -> tuple[Measured, Quality]:
    """Under the placement of ``mode``."""
    pair = LoadedPair(
        bundle,
        place(mode, available_cores(), cpu_quota(), has_draft=bundle.draft is not None),
        verify="coupled",
        num_draft=num_draft,
        num_branches=num_branches,
        max_batch=batch,
        memo=memo,
    )
    try:
        return settled(lambda: _once(pair, num_draft, num_branches, batch))
    finally:
        pair.close()


def settled(measure_once: Callable[[], tuple[Measured, Quality]]) -> tuple[Measured, Quality]:
    """The first quiet one of MOST_TRIES measurements, else the least disturbed."""
    tries = []
    for _ in range(MOST_TRIES):
        found = measure_once()
        if found[1].is_quiet:
            return found
        tries.append(found)
    return min(tries, key=lambda each: _noise(each[1]))


def _once(
    pair: LoadedPair, num_draft: int, num_branches: int, batch: int
) -> tuple[Measured, Quality]:
    rows = tuple(sorted({1, batch}))
    verify_widths = _some(1 + num_draft)
    draft_widths = tuple(sorted({1, 2, *_some(max(1, num_branches))}))
    fewest = pair.invariance.min_tokens
    calls = [_Calls(pair.target_stream, pair.target_session, 0, rows, verify_widths, fewest)]
    if pair.has_draft:
        draft = pair.draft_session
        stride = draft.manifest.limits.max_branches
        calls.append(_Calls(pair.draft_stream, draft, stride, rows, draft_widths, 1))
    started = perf_counter()
    for number in range(1 + MOST_PASSES):  # the first pass allocates and is left out
        for each in calls:
            each.run(keep=number > 0)
        if number >= FEWEST_PASSES and perf_counter() - started > BUDGET_S:
            break
    quality = Quality(
        scatter=statistics.median(scatter for each in calls for scatter in each.scatters),
        stolen=max(each.stolen for each in calls),
    )
    return Measured(calls[0].grid, calls[1].grid if pair.has_draft else NO_CALLS), quality


class _Calls:
    """One engine's calls of every shape, each timed once a pass."""

    def __init__(
        self,
        stream: Stream,
        session: Session,
        stride: int,
        rows: Sequence[int],
        widths: Sequence[int],
        min_tokens: int,
    ) -> None:
        self._stream = stream
        self._session = session
        self._layout = SlotLayout(session.manifest.kv, stride)
        self._rows = tuple(rows)
        self._widths = tuple(widths)
        self._min_tokens = min_tokens
        self._taken: dict[tuple[int, int], list[float]] = {}
        self._worked_s = self._passed_s = 0.0

    def run(self, *, keep: bool) -> None:
        """One pass, on the engine's own stream."""

        def work() -> None:
            for rows in self._rows:
                for width in self._widths:
                    working, started = thread_time(), perf_counter()
                    _feed(self._session, self._layout, rows, max(width, self._min_tokens))
                    passed = perf_counter() - started
                    if keep:
                        self._taken.setdefault((rows, width), []).append(passed)
                        self._worked_s += thread_time() - working
                        self._passed_s += passed

        on_stream(self._stream, work, "calibrate")

    @property
    def grid(self) -> Grid:
        """Medians."""
        lines = tuple(
            tuple(statistics.median(self._taken[rows, width]) for width in self._widths)
            for rows in self._rows
        )
        return Grid(self._rows, self._widths, lines)

    @property
    def scatters(self) -> list[float]:
        """Of each shape."""
        return [scatter(taken) for taken in self._taken.values()]

    @property
    def stolen(self) -> float:
        """Share of the time in which the calling thread did not work."""
        return max(0.0, 1 - self._worked_s / self._passed_s) if self._passed_s else 0.0


def scatter(taken: Sequence[float]) -> float:
    """The distance of the quartiles, in medians."""
    low, middle, high = statistics.quantiles(taken, n=4)
    return (high - low) / middle if middle else 0.0


def _some(most: int) -> tuple[int, ...]:
    """All widths up to 6, or some of them up to ``most``."""
    if most <= 6:
        return tuple(range(1, most + 1))
    return tuple(sorted({1, 2, 4, *(round(most * part / 3) for part in (1, 2, 3))}))


def _feed(session: Session, layout: SlotLayout, rows: int, width: int) -> None:
    """Every row continues a text of CONTEXT tokens (or half of what fits) by ``width`` tokens."""
    start = min(CONTEXT, session.manifest.limits.max_len // 2)
    session.bind_rows(layout.rows_for(start + width))
    step = session.prepare(CallShape(0, rows, width, width))
    for row in range(rows):
        fill_trunk(step, row, layout, start, [0] * width)
    step.logit_rows[:] = np.arange(width)
    step.num_draft[:] = 0
    step.run()
