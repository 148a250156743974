"""Statistics of samples, and what is read of the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from runtime.bench.figures import Neighbours, Spread, resident_bytes, spread


def test_spread_is_median_quartiles_and_the_slowest_hundredth() -> None:
    assert spread(list(range(101))) == Spread(101, 25.0, 50.0, 75.0, 99.0)
    assert spread([7.0]) == Spread(1, 7.0, 7.0, 7.0, 7.0)


def test_nothing_measured_is_an_error_and_no_figure() -> None:
    with pytest.raises(UsageError, match="nothing was measured"):
        spread([])


def test_resident_memory_grows_with_what_is_used() -> None:
    before = resident_bytes()
    assert before is not None
    used = np.ones(4_000_000)
    after = resident_bytes()
    assert after is not None
    assert after - before > used.nbytes / 2


@pytest.mark.parametrize("text", ["", "one", "12 x"])
def test_memory_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "statm"
    file.write_text(text)
    assert resident_bytes(file) is None
    assert resident_bytes(tmp_path / "absent") is None


def test_others_are_what_all_cores_did_without_this_process(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    file.write_text("cpu 100 0 100 5000 0\ncpu0 1 1 1 1\n")
    neighbours = Neighbours(file)
    file.write_text("cpu 100000 0 100000 5000 0\ncpu0 1 1 1 1\n")
    found = neighbours.cores()
    assert found is not None
    assert found > 1
    file.write_text("cpu 100 0 100 9000 0\ncpu0 1 1 1 1\n")
    assert neighbours.cores() == 0.0


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c", "intr 1 2 3"])
def test_others_are_unknown_where_the_system_does_not_tell(tmp_path: Path, text: str) -> None:
    file = tmp_path / "stat"
    file.write_text(text)
    assert Neighbours(file).cores() is None
