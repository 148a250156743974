"""Step times: when they are measured again, and that real engines are timed."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runtime.calibrate import times
from runtime.calibrate.times import measure
from runtime.memo import FILE, Memo
from runtime.spec.cost import StepTimes
from tests.helpers.tiny_bundle import tiny_bundle

TIMES = StepTimes(0.010, 0.012, 0.018, 0.015, 0.001, 0.002)


def make_bundle(key: str = "build"):
    return SimpleNamespace(manifest=SimpleNamespace(build_key=key))


@pytest.fixture
def machine(monkeypatch, tmp_path: Path):
    """Two cores and scripted step times; ``measured`` lists the (K, W) that were measured."""
    state = SimpleNamespace(times=TIMES, cores=(0, 1), quota=None, measured=[])
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.setattr(times, "available_cores", lambda: state.cores)
    monkeypatch.setattr(times, "cpu_quota", lambda: state.quota)
    monkeypatch.setattr(times, "runtime_identity", lambda: "engine 1 on a machine")

    def run(_bundle, num_draft, num_branches, _memo):
        state.measured.append((num_draft, num_branches))
        return state.times

    monkeypatch.setattr(times, "_measure", run)
    return state


def test_step_times_are_measured_once(machine) -> None:
    first = measure(make_bundle(), 4, 8)
    machine.times = replace(TIMES, decode_s=0.5)
    assert measure(make_bundle(), 4, 8) == first
    assert machine.measured == [(4, 8)]


@pytest.mark.parametrize(
    "change", ["build", "num_draft", "branches", "cores", "quota", "engine"], ids=str
)
def test_what_changes_the_times_has_them_measured_again(machine, monkeypatch, change) -> None:
    measure(make_bundle(), 4, 8)
    bundle, num_draft, branches = make_bundle(), 4, 8
    if change == "build":
        bundle = make_bundle("another")
    elif change == "num_draft":
        num_draft = 3
    elif change == "branches":
        branches = 7
    elif change == "cores":
        machine.cores = (0, 1, 2)
    elif change == "quota":
        machine.quota = 1.5
    else:
        monkeypatch.setattr(times, "runtime_identity", lambda: "engine 2 on a machine")
    measure(bundle, num_draft, branches)
    assert len(machine.measured) == 2


@pytest.mark.parametrize("value", [None, 3, [], {"decode_s": 1.0}, {"decode_s": "fast"}])
def test_remembered_times_of_another_form_are_measured_again(machine, tmp_path, value) -> None:
    measure(make_bundle(), 4, 8)
    (key,) = Memo(tmp_path)._read()
    Memo(tmp_path).put(key, value)
    assert measure(make_bundle(), 4, 8) == TIMES
    assert len(machine.measured) == 2
    assert measure(make_bundle(), 4, 8) == TIMES
    assert len(machine.measured) == 2


def test_real_engines_are_timed_and_all_is_kept_in_the_memo_given(tmp_path, monkeypatch) -> None:
    """The probe's answer once went to the user's own cache."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "users"))
    found = measure(tiny_bundle(max_batch=1), 2, 3, Memo(tmp_path / "given"))
    assert all(getattr(found, field.name) > 0 for field in fields(found))
    assert (tmp_path / "given" / FILE).exists()
    assert not (tmp_path / "users").exists()
