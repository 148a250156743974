"""Every kernel is free of data races, as far as a run of threads can show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from plugins.cuda import registry
from tests.helpers import sanitizer

SCRIPT = Path(__file__).with_name("sanitized_process.py")

pytestmark = pytest.mark.tsan


def test_the_kernels_are_clean(kernel_cache: Path) -> None:
    """One process for all: a kernel's lines come after its trials have passed."""
    names = ["probe", *registry.NAMES]
    done = sanitizer.run(SCRIPT, "kernel", *names, cache=kernel_cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {line.split()[0] for line in done.stdout.splitlines()} == set(names)


def test_a_race_would_be_found(kernel_cache: Path) -> None:
    """Inside a block and between blocks: without this a clean run would mean nothing."""
    entries = "faulty_racy", "faulty_racy_blocks"
    done = sanitizer.run(SCRIPT, "faulty", *entries, cache=kernel_cache)
    assert done.returncode == 66
    reports = done.stderr.split(sanitizer.FOUND)[1:]
    for entry in entries:
        assert any(f"{entry} " in report for report in reports), f"no race in {entry}"
