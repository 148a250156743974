"""``bench lanes``: the draft's lane as a thread against a process of its own."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.bench.figures import Spread
from runtime.bench.kind import Kind, Show
from runtime.cli.options import whole
from runtime.cli.report import number, table

ALONE, THREAD, PROCESS = "alone", "thread", "process"
ARRANGEMENTS = (ALONE, THREAD, PROCESS)
HOPS_A_ROUND = 2
"""The outcome goes to the draft, the next proposal comes back."""

DESCRIPTION = """\
Verify K drafted tokens on a bundle's target: alone, while the draft's lane works in another
thread of the process (as the runtime has it), and while it works in a process of its own. The
draft works without a pause: adopt, commit, prepare, with outcomes made up so that each was
prepared. The three take turns in short segments, so that a drifting machine meets all alike. Then
one hand-over each way: between streams, and between processes."""

EXAMPLES = """\
examples:
  python -m runtime bench lanes --bundle engines/bundles/demo
  python -m runtime bench lanes --bundle engines/bundles/demo --segments 4 --json
"""

FORMULAS = {
    "contention_us": "median verification beside a thread - beside a process",
    "hop_loss_us": f"{HOPS_A_ROUND} x (median hop between processes, the cheaper way - between "
    "streams)",
    "gain_us": "contention_us - hop_loss_us: what a process would save a round; below 0 it costs",
    "gain_share": "gain_us / median verification beside a thread",
    "busy_share": "the draft's median round / the target's, at most 1: a real round has one of "
    "each, so the draft is busy that long, and contention_us is what it is at most",
}


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Milliseconds of verifications, and of the draft's rounds meanwhile."""

    name: str
    verify_ms: Spread
    draft_ms: Spread | None
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a process would change, a round; see FORMULAS."""

    contention_us: float
    hop_loss_us: float
    gain_us: float
    gain_share: float
    busy_share: float


@dataclass(frozen=True, slots=True)
class LaneFigures:
    """``hops_us`` by way: thread, pipe, semaphore. ``child_bytes``: memory of the draft's process
    that a thread would share with the target."""

    num_draft: int
    num_branches: int
    target_cores: tuple[int, ...]
    draft_cores: tuple[int, ...]
    arrangements: tuple[Arrangement, ...]
    hops_us: dict[str, Spread]
    verdict: Verdict
    child_bytes: int | None

    def as_text(self) -> str:
        """Two tables and the verdict."""
        rows = [
            [
                each.name,
                str(each.verify_ms.num),
                number(each.verify_ms.median, 3),
                f"{each.verify_ms.low:.3f} - {each.verify_ms.high:.3f}",
                number(None if each.draft_ms is None else each.draft_ms.median, 3),
                "-"
                if each.draft_ms is None
                else f"{each.draft_ms.low:.3f} - {each.draft_ms.high:.3f}",
            ]
            for each in self.arrangements
        ]
        hops = [
            [name, str(each.num), number(each.median, 1), f"{each.low:.1f} - {each.high:.1f}"]
            for name, each in self.hops_us.items()
        ]
        verdict, cores = self.verdict, f"{self.target_cores} and {self.draft_cores}"
        child = "-" if self.child_bytes is None else f"{self.child_bytes / 2**20:.0f} MiB"
        gain = (
            f"a process instead of a thread: {verdict.contention_us:+.0f} us a round by less "
            f"contention, {-verdict.hop_loss_us:+.0f} us by its hops, together "
            f"{verdict.gain_us:+.0f} us ({verdict.gain_share:+.1%} of a verification); the "
            f"draft is busy {verdict.busy_share:.0%} of a verification"
        )
        headers = ("draft", "verified", "verify ms", "quartiles", "draft ms", "quartiles")
        return "\n".join(
            (
                f"K = {self.num_draft}, W = {self.num_branches}, cores {cores}",
                "",
                table(headers, rows),
                table(("hop", "times", "us", "quartiles"), hops),
                gain,
                f"memory of the draft's process: {child}",
            )
        )


def judge(arrangements: Mapping[str, Arrangement], hops_us: Mapping[str, Spread]) -> Verdict:
    """Gain or loss of a process, from medians; see FORMULAS. Needs all arrangements and ways."""
    thread, process = arrangements[THREAD], arrangements[PROCESS]
    assert thread.draft_ms is not None
    contention = (thread.verify_ms.median - process.verify_ms.median) * 1e3
    between = min(hops_us["pipe"].median, hops_us["semaphore"].median)
    loss = HOPS_A_ROUND * (between - hops_us["thread"].median)
    gain = contention - loss
    return Verdict(
        contention_us=contention,
        hop_loss_us=loss,
        gain_us=gain,
        gain_share=gain / 1e3 / thread.verify_ms.median,
        busy_share=min(1.0, thread.draft_ms.median / thread.verify_ms.median),
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="bundle directory to measure"
    )
    parser.add_argument(
        "--num-draft",
        type=whole(1),
        metavar="K",
        help="tokens drafted (default: what the bundle was built for)",
    )
    parser.add_argument(
        "--branches",
        type=whole(1),
        metavar="W",
        help="outcomes prepared (default: what the bundle was built for)",
    )
    parser.add_argument(
        "--segments",
        type=whole(1),
        default=12,
        metavar="N",
        help="turns of each arrangement (default: 12)",
    )
    parser.add_argument(
        "--rounds",
        type=whole(1),
        default=40,
        metavar="N",
        help="verifications a turn (default: 40)",
    )
    parser.add_argument(
        "--hops",
        type=whole(1),
        default=2000,
        metavar="N",
        help="hand-overs each way (default: 2000)",
    )


def _measure(args: argparse.Namespace, show: Show) -> LaneFigures:
    from runtime.bench.lane_turns import measure_lanes

    with show("lanes", args.segments + len(ARRANGEMENTS)) as tick:
        return measure_lanes(
            args.bundle,
            num_draft=args.num_draft,
            num_branches=args.branches,
            segments=args.segments,
            rounds=args.rounds,
            hops=args.hops,
            tick=tick,
        )


KIND = Kind(
    name="lanes",
    purpose="the draft as a thread against the draft as a process",
    description=DESCRIPTION,
    examples=EXAMPLES,
    packages=("numpy", "onnxruntime"),
    formulas=FORMULAS,
    add_options=_add_options,
    measure=_measure,
)
