"""The report of a load test, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from runtime.bench.serving.faults import Fault
from runtime.bench.serving.figures import Run
from runtime.bench.serving.kind import FORMULAS
from runtime.cli.report import number, table

LATENCIES = ("ttft", "tpot", "itl", "e2el")
SHOWN = (50, 90, 99)
OF_ROUNDS = {
    "tokens/round": ("acceptance_length", 2),
    "rounds": ("num_rounds", 0),
    "proposals": ("num_proposals", 0),
}
"""Columns: the key of a run and its digits; of a server that tells its rounds."""
OF_PROPOSALS = {
    "accepted/proposal + 1": ("spec_decode_acceptance_length", 2),
    "proposals": ("spec_decode_num_drafts", 0),
}
"""Of one that tells its proposals alone: few of them say little of its speed."""


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """Runs by level, and faults. ``what``: what was asked, in words."""

    what: str
    model: str
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]
    errors: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Every request was answered, and no fault was another client's loss."""
        return not self.errors and all(fault.is_harmless for fault in self.faults)

    def as_text(self) -> str:
        text = f"{self.model}: {self.what}\n\n"
        if self.runs:
            text += self._rates() + "\n" + self._latencies()
        if self.faults:
            text += ("\n" if self.runs else "") + self._faults()
        for error in self.errors:
            text += f"failed: {error}\n"
        return text

    @property
    def explains(self) -> Set[str]:
        """See ``runtime.bench.kind.Explained``."""
        others = set(FORMULAS) - {name for columns in (OF_ROUNDS, OF_PROPOSALS) for name in columns}
        return others | set(self._of_drafts())

    def _of_drafts(self) -> Mapping[str, tuple[str, int]]:
        """The columns that this server's counts suffice for."""
        for columns in (OF_ROUNDS, OF_PROPOSALS):
            if any(key in run.keys for run in self.runs for key, _ in columns.values()):
                return columns
        return {}

    def _rates(self) -> str:
        of_drafts = self._of_drafts()
        headers = (
            "load",
            "done",
            "failed",
            "seconds",
            "requests/s",
            "tokens/s",
            *of_drafts,
            "cached",
        )
        rows = [
            (
                str(run.level),
                str(run["completed"]),
                str(run["failed"]),
                number(run["duration"], 1),
                number(run["request_throughput"], 2),
                number(run["output_throughput"], 1),
                *(number(run.keys.get(key), digits) for key, digits in of_drafts.values()),
                f"{run['total_cached_tokens']} of {run['total_input_tokens']}",
            )
            for run in self.runs
        ]
        return table(headers, rows)

    def _latencies(self) -> str:
        headers = ["load, ms"]
        headers += [f"{name.upper()} p{share}" for name in LATENCIES[:3] for share in SHOWN]
        rows = [
            [str(run.level)]
            + [number(run[f"p{share}_{name}_ms"], 1) for name in LATENCIES[:3] for share in SHOWN]
            for run in self.runs
        ]
        return table(headers, rows)

    def _faults(self) -> str:
        rows = [
            (fault.name, str(fault.num_streams), "nothing lost" if fault.is_harmless else reason)
            for fault in self.faults
            for reason in (fault.reasons or ("",))
        ]
        return table(("fault", "other streams", "outcome"), rows, figures=False)
