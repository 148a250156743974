"""The contract part: the suites of the device, run by pytest on the real GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.gpu import report
from tests.gpu.parts import Options
from tests.gpu.report import Case, Outcome

ROOT = Path(__file__).resolve().parents[2]
RESERVE_S = 5.0
"""For the start of the process around it, so that pytest is never left behind."""
SUITES = ("tests/contract/test_device*.py", "tests/runtime/device/test_cuda_gpu.py")


def run(options: Options) -> list[Case]:
    """Raises ValueError where pytest left no report."""
    limit_s = max(1.0, options.budget_s - RESERVE_S)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "pytest.xml")
        try:
            done = subprocess.run(
                command(found),
                cwd=ROOT,
                # What this machine cannot run must not pass for checked.
                env={**os.environ, "SSD_REQUIRE": "gpu", "PYTHONPATH": str(ROOT)},
                stdout=sys.stderr,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return [Case("pytest", Outcome.FAILED, f"it took longer than {limit_s:.0f} s")]
        cases = list(report.cases_of_junit(found))
    if not cases:
        cases = [Case("pytest", Outcome.FAILED, f"it ran no test (exit code {done.returncode})")]
    return cases


def command(junit: Path) -> list[str]:
    """pytest over the suites with its defaults: the project's ask for plugins that a machine with a
    GPU need not have."""
    files = sorted(str(each.relative_to(ROOT)) for suite in SUITES for each in ROOT.glob(suite))
    return [
        *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={ROOT}"),
        *("--import-mode=importlib", "-p", "no:cacheprovider", "-W", "ignore"),
        "--continue-on-collection-errors",
        *("-m", "gpu", f"--junitxml={junit}", *files),
    ]
