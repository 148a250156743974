"""``python -m tests.gpu.check --out DIR``: everything that only a GPU can show, in four minutes.

Run in the root of the repository, on a machine with one NVIDIA GPU. The parts, each skipped by name
where its packages are missing:

    contract    the device contract and the tests marked gpu, on the CUDA device (pytest)
    replay      every kernel launched, captured and replayed on our own streams, against numpy
    generation  bundles: ssd's tokens are plain decoding's, and the CPU's but for near ties
    kernels     every kernel timed against the same work in torch, with its bandwidth

DIR/check.json has card, driver, versions and figures, DIR/check.xml the same cases for CI. Exit
code 1: something failed or there was no time for it; 2: nothing could be run.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic

from engines.errors import SsdError, UsageError, as_line
from tests.gpu import report
from tests.gpu.machine import facts_of
from tests.gpu.parts import DEFAULT_BUNDLE, PARTS, Options, Part
from tests.gpu.report import Outcome, PartReport

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 228.0
LEAST_S = 10.0
"""A part that would get less is left out."""

RunPart = Callable[[Part, Options], PartReport]


def run_parts(
    parts: Sequence[Part],
    options: Options,
    run_part: RunPart,
    *,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = monotonic,
) -> list[PartReport]:
    """Every part in turn, each with what is left of the budget, at most its own limit."""
    started = clock()
    reports = []
    for part in parts:
        left_s = budget_s - (clock() - started)
        if part.missing:
            reports.append(PartReport(part.name, Outcome.SKIPPED, _needs(part.missing)))
        elif left_s < LEAST_S:
            reports.append(PartReport(part.name, Outcome.LEFT_OUT, f"{left_s:.0f} s were left"))
        else:
            own = Options(options.bundles, options.device, min(left_s, part.limit_s))
            reports.append(run_part(part, own))
    return reports


def run_apart(part: Part, options: Options) -> PartReport:
    """A part in a process of its own, which is killed when its time is over."""
    started = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder, "cases.json")
        command = [sys.executable, "-m", "tests.gpu.check"]
        command += ["--part", part.name, "--cases", str(cases), "--device", options.device]
        command += ["--budget", str(options.budget_s)]
        for bundle in options.bundles:
            command += ["--bundle", str(bundle)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                stderr=subprocess.PIPE,
                stdout=sys.stderr,
                text=True,
                timeout=options.budget_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {options.budget_s:.0f} s"
            return PartReport(part.name, Outcome.FAILED, reason, monotonic() - started)
        seconds = monotonic() - started
        try:
            found = report.cases_from_json(cases.read_text())
        except (OSError, ValueError):
            reason = _last_line(done.stderr) or f"exit code {done.returncode}"
            return PartReport(part.name, Outcome.FAILED, reason, seconds)
    return report.of_cases(part.name, found, seconds)


def main(argv: Sequence[str] | None = None, run_part: RunPart = run_apart) -> int:
    """0, 1 where something failed or was left out, 2 with one line on stderr."""
    options = _parser().parse_args(argv)
    try:
        if options.part is not None:
            return _run_here(options)
        parts = [_part(name) for name in options.parts] or list(PARTS.values())
        facts = facts_of(options.device)
        told = Options(tuple(_bundles(options.bundles)), options.device)
        started = monotonic()
        reports = run_parts(parts, told, run_part)
        facts |= {"elapsed_s": monotonic() - started}
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "check.json").write_text(report.as_json(reports, facts))
        (options.out / "check.xml").write_text(report.as_junit(reports))
    except SsdError as error:
        sys.stderr.write(f"error: {as_line(str(error))}\n")
        return 2
    sys.stdout.write(f"{facts['card']}, driver {facts['driver']}\n{report.as_table(reports)}\n")
    return 0 if all(each.is_good for each in reports) else 1


def _run_here(options: argparse.Namespace) -> int:
    """One part in this process; the cases go to a file, whatever it may print."""
    part = _part(options.part)
    told = Options(tuple(options.bundles), options.device, options.budget)
    options.cases.write_text(report.cases_as_json(part.run(told)))
    return 0


def _bundles(given: Sequence[Path]) -> list[Path]:
    default = ROOT / DEFAULT_BUNDLE
    return [each.resolve() for each in given] or [default] * default.is_dir()


def _part(name: str) -> Part:
    if name not in PARTS:
        raise UsageError(f"no part {name!r}; there are {', '.join(PARTS)}")
    return PARTS[name]


def _needs(missing: Sequence[str]) -> str:
    return f"needs {', '.join(missing)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu.check", description="Check everything that needs a GPU."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/gpu-check"), help="a folder (build/gpu-check)"
    )
    parser.add_argument("--device", default="cuda:0", help="the GPU (cuda:0)")
    parser.add_argument(
        "--bundle",
        dest="bundles",
        action="append",
        default=[],
        type=Path,
        help=f"a bundle to generate with; may be given again ({DEFAULT_BUNDLE}, if it was built)",
    )
    for name, kind in (("--part", str), ("--cases", Path), ("--budget", float)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
