"""``bench --replay`` as a kind of measurement."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from runtime.bench.kind import Kind, Show

if TYPE_CHECKING:
    from runtime.bench.replay.report import ReplayFigures

FORMULAS = {
    "setting": "mode, K drafted tokens, W outcomes prepared and what follows a miss; best: what "
    "the cost model finds fastest within what the profile allows",
    "tokens/s": "measured: the real scheduler, workers, cache and statistics over engines that "
    "take the profile's times, every slot busy, all rows together; outcomes are dealt in the "
    "law's proportions",
    "predicted": "tokens/s of the cost model (runtime.spec.cost) for the same times and law; on "
    "the real clock with the host term",
    "distance": "measured tokens/s / predicted - 1",
    "published": "tokens/s that the published run printed, for its own software",
    "tokens/round": "tokens that a verification of one row emitted, the bonus token included",
    "hit rate": "share of the outcomes that had been prepared when they came",
    "after hit, after miss": "the same, of rounds that began with a hit, or with a miss",
    "round ms": "mean time from one round's outcomes to the next one's",
    "virtual clock": "seconds of the critical path through engine calls; the runtime's own work "
    "takes none",
    "host ms": "median (and quartiles) of the milliseconds that a round takes longer "
    "than the same round on the virtual clock",
    "host term": "milliseconds that the model adds to a round for the runtime's own work: behind a "
    "verification / in ssd behind the draft's calls, where these take longer / for each call of "
    "the draft that is waited for. Measured now, beside other engines: one takes half of its time, "
    "the other next to none",
    "luck": "tokens/s of the same outcomes on the virtual clock / predicted without the host term "
    "- 1: a part of the distance, smaller in longer runs",
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
