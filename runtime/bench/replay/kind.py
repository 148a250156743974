"""``bench --replay`` as a kind of measurement."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from runtime.bench.kind import Kind, Show

if TYPE_CHECKING:
    from runtime.bench.replay.report import ReplayFigures

FORMULAS = {
    "measured": "tokens/s of the real scheduler, workers, cache and statistics over engines that "
    "take the profile's times, every slot busy, all rows together; outcomes are dealt in the "
    "law's proportions",
    "predicted": "tokens/s of the cost model (runtime.spec.cost) for the same times and law",
    "distance": "measured / predicted - 1",
    "published": "tokens/s that the published run printed, for its own software and, where that "
    "is said, other times",
    "best": "K, W and fallback that the cost model finds fastest within what the profile allows",
    "virtual clock": "seconds of the critical path through engine calls; the runtime's own work "
    "takes none",
    "host ms": "real clock: median (and quartiles) of the milliseconds that a round takes longer "
    "than the same round on the virtual clock",
}


def _measure(args: argparse.Namespace, show: Show) -> ReplayFigures:
    from runtime.bench.replay.command import measure

    return measure(args, show)


KIND = Kind(
    name="replay",
    purpose="the real scheduler over engines that take prescribed times",
    description="",
    examples="",
    packages=("numpy",),
    formulas=FORMULAS,
    add_options=lambda _: None,
    measure=_measure,
)
