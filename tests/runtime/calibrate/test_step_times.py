"""Times of calls: when they are measured again, what a busy machine does to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.calibrate import times
from runtime.calibrate.times import (
    MOST_LOADS,
    MOST_TRIES,
    MachineTimes,
    Measured,
    Quality,
    measure,
    scatter,
    settled,
)
from runtime.memo import FILE, Memo
from runtime.spec.cost import Grid
from tests.helpers.tiny_bundle import tiny_bundle

QUIET, BUSY, BUSIER = Quality(0.02, 0.01), Quality(0.02, 0.5), Quality(0.6, 0.5)


def calls(seconds: float) -> Measured:
    grid = Grid((1,), (1, 2), ((seconds, 2 * seconds),))
    return Measured(grid, grid)


def make_bundle(key: str = "build", *, draft: bool = True):
    return SimpleNamespace(
        manifest=SimpleNamespace(build_key=key), draft=object() if draft else None
    )


@pytest.fixture
def machine(monkeypatch, tmp_path: Path):
    """Two cores and scripted times; ``measured`` lists what was measured."""
    state = SimpleNamespace(
        times={"ar": calls(0.03), "sd": calls(0.01), "ssd": calls(0.02)},
        quality={"ar": QUIET, "sd": QUIET, "ssd": QUIET},
        cores=(0, 1),
        quota=None,
        measured=[],
    )
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.setattr(times, "available_cores", lambda: state.cores)
    monkeypatch.setattr(times, "cpu_quota", lambda: state.quota)
    monkeypatch.setattr(times, "runtime_identity", lambda: "engine 1 on a machine")

    def run(_bundle, mode, num_draft, num_branches, batch, _memo):
        state.measured.append((mode, num_draft, num_branches, batch))
        return state.times[mode], state.quality[mode]

    monkeypatch.setattr(times, "_measure", run)
    return state


def test_times_are_measured_once_under_both_placements(machine) -> None:
    first = measure(make_bundle(), 4, 8, 2)
    assert first == MachineTimes(calls(0.01), calls(0.02), QUIET)
    machine.times["sd"] = calls(0.5)
    assert measure(make_bundle(), 4, 8, 2) == first
    assert machine.measured == [("sd", 4, 8, 2), ("ssd", 4, 8, 2)]


def test_a_measurement_is_announced_before_it_and_memories_are_not(machine) -> None:
    """Fifteen silent seconds look like a hang."""
    seen: list[int] = []
    for _ in range(2):
        measure(make_bundle(), 4, 8, 2, announce=lambda: seen.append(len(machine.measured)))
    assert seen == [0]


def test_without_branches_nothing_runs_side_by_side(machine) -> None:
    assert measure(make_bundle(), 4, 0, 1).apart is None
    assert machine.measured == [("sd", 4, 0, 1)]


def test_a_bundle_without_a_draft_has_its_target_alone_measured(machine) -> None:
    """Placements with a draft refuse it."""
    assert measure(make_bundle(draft=False), 4, 0, 1).together == calls(0.03)
    assert machine.measured == [("ar", 4, 0, 1)]


@pytest.mark.parametrize(
    "change", ["build", "num_draft", "branches", "batch", "cores", "quota", "engine"], ids=str
)
def test_what_changes_the_times_has_them_measured_again(machine, monkeypatch, change) -> None:
    measure(make_bundle(), 4, 8, 1)
    bundle = make_bundle("another" if change == "build" else "build")
    if change == "cores":
        machine.cores = (0, 1, 2)
    elif change == "quota":
        machine.quota = 1.5
    elif change == "engine":
        monkeypatch.setattr(times, "runtime_identity", lambda: "engine 2 on a machine")
    measure(
        bundle,
        3 if change == "num_draft" else 4,
        7 if change == "branches" else 8,
        2 if change == "batch" else 1,
    )
    assert len(machine.measured) == 4


@pytest.mark.parametrize("value", [None, 3, [], {"together": 1.0}, {"together": {"target": []}}])
def test_remembered_times_of_another_form_are_measured_again(machine, tmp_path, value) -> None:
    first = measure(make_bundle(), 4, 8, 1)
    (key,) = Memo(tmp_path)._read()
    Memo(tmp_path).put(key, value)
    assert measure(make_bundle(), 4, 8, 1) == first
    assert len(machine.measured) == 4
    assert measure(make_bundle(), 4, 8, 1) == first
    assert len(machine.measured) == 4


# --- a busy machine ---


def test_a_busy_machine_is_measured_again_at_the_next_load(machine) -> None:
    """Times that were taken beside another program stayed for good, and chose wrongly."""
    machine.quality["sd"] = BUSY
    machine.times["sd"] = calls(0.04)
    assert measure(make_bundle(), 4, 8, 1).together == calls(0.04)
    machine.quality["sd"], machine.times["sd"] = QUIET, calls(0.01)
    found = measure(make_bundle(), 4, 8, 1)
    assert (found.together, found.apart, found.quality) == (calls(0.01), calls(0.02), QUIET)
    measure(make_bundle(), 4, 8, 1)
    assert [mode for mode, *_ in machine.measured] == ["sd", "sd", "ssd"]


@pytest.mark.parametrize("busy", ["sd", "ssd"])
def test_placements_are_not_compared_on_a_busy_machine(machine, busy: str) -> None:
    """Of two threads on a core that is shared, one waits: all cores then look slower than one."""
    machine.quality[busy] = BUSY
    assert measure(make_bundle(), 4, 8, 1).apart is None


def test_a_machine_that_is_always_busy_is_not_measured_for_ever(machine) -> None:
    machine.quality["sd"] = BUSIER
    for number in range(MOST_LOADS):
        measure(make_bundle(), 4, 8, 1)
        machine.quality["sd"] = BUSY if number == 0 else BUSIER
        machine.times["sd"] = calls(0.03 + number)
    assert len(machine.measured) == MOST_LOADS
    found = measure(make_bundle(), 4, 8, 1)
    assert len(machine.measured) == MOST_LOADS
    assert found.together == calls(0.03)  # the least disturbed
    assert found.num_loads == MOST_LOADS


def test_a_disturbed_measurement_is_tried_again_at_once() -> None:
    tries = [(calls(3), BUSIER), (calls(1), QUIET), (calls(2), BUSY)]
    assert settled(lambda: tries.pop(0)) == (calls(1), QUIET)
    assert len(tries) == 3 - MOST_TRIES


def test_of_disturbed_ones_the_least_disturbed_is_taken() -> None:
    tries = [(calls(1), BUSY), (calls(2), BUSIER)]
    assert settled(lambda: tries.pop(0)) == (calls(1), BUSY)


@pytest.mark.parametrize(
    ("quality", "is_quiet"),
    [
        (QUIET, True),
        (BUSY, False),
        (replace(QUIET, scatter=0.11), False),
        (replace(QUIET, stolen=0.16), False),
    ],
)
def test_a_machine_is_busy_by_scatter_or_by_stolen_time(quality, is_quiet) -> None:
    """Interruptions scatter; a core that is always shared gives steady times that are too long."""
    assert quality.is_quiet is is_quiet


def test_scatter_is_that_of_most_calls_not_of_the_worst() -> None:
    assert scatter([1.0] * 9) == 0
    assert scatter([1.0] * 8 + [50.0]) < 0.1
    assert scatter([1.0, 2.0, 1.0, 2.0, 1.0, 2.0]) > 0.5


# --- real engines ---


def test_real_engines_are_timed_and_all_is_kept_in_the_memo_given(tmp_path, monkeypatch) -> None:
    """The probe's answer once went to the user's own cache."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "users"))
    monkeypatch.setattr(times, "SCATTER", 1e9)
    monkeypatch.setattr(times, "STOLEN", 1.0)
    found = measure(tiny_bundle(max_batch=2), 2, 3, 2, Memo(tmp_path / "given"))
    assert found.apart is None or found.apart.target.rows == (1, 2)
    assert found.together.target.tokens == (1, 2, 3)
    assert found.together.draft.tokens == (1, 2, 3)
    assert all(second > 0 for line in found.together.draft.seconds_at for second in line)
    assert (tmp_path / "given" / FILE).exists()
    assert not list((tmp_path / "users").rglob(FILE)), "compiled kernels may be there"
