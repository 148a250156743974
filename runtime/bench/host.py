"""``bench host``: the runtime's own work per round."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.bench.kind import Kind, Show
from runtime.cli.options import whole
from runtime.cli.report import number, percent, table

if TYPE_CHECKING:
    from runtime.bench.rounds import HostRounds

MODES = ("ar", "sd", "ssd")
DESCRIPTION = """\
Run rounds with engines that take no time, so that all that a round takes is the runtime's own
work: launches, workers, scheduling, hops between threads. Acceptance and hits follow the default
pair's law, and so do sizes: 49152 ids, a draft of 8192. Memory and acceptance are shown at the
start, in the middle and at the end."""

EXAMPLES = """\
In ssd the draft prepares while the target verifies. With engines that take no time nothing hides
that; --verify-ms shows what is left of a round when a verification takes as long as a real one.

examples:
  python -m runtime bench host
  python -m runtime bench host --modes ssd --batch 16 --verify-ms 12 --rounds 2000
"""

FORMULAS = {
    "host_us": "median time from one round's end to the next one's - engine_us",
    "engine_us": "of a round, in the target's engine: processor time, and with --verify-ms its "
    "sleep",
    "parts_us": "median processor time a round of each thread's work, in a second run with clocks "
    "around it",
    "alone_us": "the same with all work in one thread, where nothing waits for the interpreter's "
    "lock or finds its data in another core's cache",
    "rest_us": "host_us - the sum of parts_us: waiting, hops between threads; below 0 where work "
    "was hidden",
    "acceptance": "tokens emitted / rounds, of the texts that ended in each third of the rounds",
}


@dataclass(frozen=True, slots=True)
class HostFigures:
    """All cases that were run."""

    rounds: int
    num_draft: int
    num_branches: int
    verify_ms: float
    cases: tuple[HostRounds, ...]

    def as_text(self) -> str:
        """Three tables: times, where they go, and what must stay as it was."""
        times = [
            [
                *_case(case),
                number(case.round_us.median, 1),
                f"{case.round_us.low:.1f} - {case.round_us.high:.1f}",
                number(case.round_us.p99, 1),
                number(case.engine_us, 1),
                number(case.host_us, 1),
                "-" if case.budget_us is None else f"{case.budget_us:.0f}",
            ]
            for case in self.cases
        ]
        headers = ("mode", "batch", "round us", "quartiles", "p99", "engine", "host us", "budget")
        parts = [
            [*_case(case), name, number(value, 1), number(case.alone_us.get(name), 1)]
            for case in self.cases
            for name, value in (*case.parts_us.items(), ("rest", case.rest_us))
        ]
        steady = [
            [
                *_case(case),
                _three([number(value, 3) for value in case.acceptance]),
                _three([percent(value) for value in case.hit_rate]),
                _three([_mib(value) for value in case.resident_bytes]),
            ]
            for case in self.cases
        ]
        return "\n".join(
            (
                f"{self.rounds} rounds a row, K = {self.num_draft}, W = {self.num_branches}"
                + (f", a verification takes {self.verify_ms:g} ms" if self.verify_ms else ""),
                "",
                table(headers, times),
                table(("mode", "batch", "part", "us a round", "in one thread"), parts),
                table(("mode", "batch", "acceptance", "hit rate", "resident MiB"), steady),
            )
        )


def _case(case: HostRounds) -> tuple[str, str]:
    return case.mode, str(case.batch)


def _three(values: list[str]) -> str:
    return " / ".join(values)


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:.1f}"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds",
        type=whole(1),
        default=10_000,
        metavar="N",
        help="rounds of each mode and batch (default: 10000)",
    )
    parser.add_argument(
        "--batch",
        type=_batches,
        default=(1, 16),
        metavar="B[,B]",
        help="texts decoded at once (default: 1,16)",
    )
    parser.add_argument(
        "--modes", type=_modes, default=MODES, metavar="M[,M]", help="modes (default: ar,sd,ssd)"
    )
    parser.add_argument(
        "--num-draft", type=whole(1), default=2, metavar="K", help="tokens drafted (default: 2)"
    )
    parser.add_argument(
        "--branches", type=whole(1), default=12, metavar="W", help="outcomes prepared (default: 12)"
    )
    parser.add_argument(
        "--verify-ms",
        type=_milliseconds,
        default=0.0,
        metavar="MS",
        help="let a verification sleep so long, for work to hide behind it (default: 0)",
    )


def _batches(text: str) -> tuple[int, ...]:
    return tuple(map(whole(1), text.split(",")))


def _modes(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(
                f"{name!r} is no mode (choose from {', '.join(MODES)})"
            )
    return names


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 10000")
    return value


def _measure(args: argparse.Namespace, show: Show) -> HostFigures:
    from runtime.bench.rounds import RoundsPlan, measure_rounds

    cases = []
    for mode in args.modes:
        for batch in args.batch:
            plan = RoundsPlan(
                mode, batch, args.rounds, args.num_draft, args.branches, args.verify_ms / 1e3
            )
            with show(f"{mode}, batch {batch}", args.rounds) as tick:
                cases.append(measure_rounds(plan, tick))
    return HostFigures(args.rounds, args.num_draft, args.branches, args.verify_ms, tuple(cases))


KIND = Kind(
    name="host",
    purpose="the runtime's own work per round, with engines that take no time",
    description=DESCRIPTION,
    examples=EXAMPLES,
    packages=("numpy",),
    formulas=FORMULAS,
    add_options=_add_options,
    measure=_measure,
)
