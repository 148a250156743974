"""The choice of ``auto`` from scripted step times, and when they are measured again."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.manifest import DraftFigures
from runtime import calibrate
from runtime.memo import FILE, Memo
from runtime.spec.cost import StepTimes
from tests.helpers.tiny_bundle import tiny_bundle

GOOD, BAD = DraftFigures((0.9, 0.05)), DraftFigures((0.05, 0.05))
# The second core makes the target 1.5 times faster; the draft is cheap.
TIMES = StepTimes(
    decode_s=0.010,
    verify_all_s=0.012,
    verify_s=0.018,
    verify_none_s=0.015,
    draft_s=0.001,
    branches_s=0.002,
)
# A target that cannot use more cores, and a draft that costs as much as half a verification.
APART = replace(TIMES, verify_s=0.012, verify_none_s=0.010, draft_s=0.003, branches_s=0.003)


def make_bundle(figures: DraftFigures | None = GOOD, *, draft: bool = True, key: str = "build"):
    return SimpleNamespace(
        draft=object() if draft else None,
        manifest=SimpleNamespace(draft_figures=figures, build_key=key),
    )


@pytest.fixture
def machine(monkeypatch, tmp_path: Path):
    """Two cores and scripted step times; ``measured`` lists the (K, W) that were measured."""
    state = SimpleNamespace(times=TIMES, cores=(0, 1), quota=None, measured=[])
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.setattr(calibrate, "available_cores", lambda: state.cores)
    monkeypatch.setattr(calibrate, "cpu_quota", lambda: state.quota)
    monkeypatch.setattr(calibrate, "runtime_identity", lambda: "engine 1 on a machine")

    def measure(_bundle, num_draft, num_branches, _memo):
        state.measured.append((num_draft, num_branches))
        return state.times

    monkeypatch.setattr(calibrate, "_measure", measure)
    return state


def test_a_draft_that_is_seldom_right_is_left_out(machine) -> None:
    mode, why = calibrate.choose_mode(make_bundle(BAD), 4, 8)
    assert mode == "ar"
    assert "ar 100" in why
    assert machine.measured == [(4, 8)]


def test_a_good_cheap_draft_speculates_with_the_target_on_all_cores(machine) -> None:
    assert calibrate.choose_mode(make_bundle(), 4, 8)[0] == "sd"
    assert machine.measured == [(4, 8)]


def test_a_gain_that_other_prompts_may_eat_up_is_not_taken(machine) -> None:
    """The acceptance is the draft maker's, on other text: a small predicted gain is no gain."""
    machine.times = replace(TIMES, verify_all_s=0.034, verify_s=0.05, verify_none_s=0.05)
    mode, why = calibrate.choose_mode(make_bundle(), 4, 8)
    sd = float(why.partition("sd ")[2].partition(",")[0])
    assert 100 < sd < 115
    assert mode == "ar"


def test_a_good_draft_beside_a_target_that_gains_nothing_runs_ahead(machine) -> None:
    machine.times = APART
    mode, why = calibrate.choose_mode(make_bundle(), 4, 8)
    assert mode == "ssd"
    assert all(f"{name} " in why for name in ("ar", "sd", "ssd"))


@pytest.mark.parametrize(("cores", "quota"), [((0,), None), ((0, 1), 1.0)])
def test_one_core_never_chooses_ssd(machine, cores, quota) -> None:
    """ssd would run as sd there, so its rate is neither measured nor offered."""
    machine.times, machine.cores, machine.quota = APART, cores, quota
    mode, why = calibrate.choose_mode(make_bundle(), 4, 8)
    assert mode == "sd"
    assert "ssd" not in why
    assert machine.measured == [(4, 0)]


@pytest.mark.parametrize(("draft", "num_draft"), [(False, 4), (True, 0)])
def test_nothing_to_speculate_with_is_plain_decoding_without_measuring(
    machine, draft, num_draft
) -> None:
    mode, why = calibrate.choose_mode(make_bundle(draft=draft), num_draft, 8)
    assert mode == "ar"
    assert "no draft" in why
    assert machine.measured == []


def test_a_draft_without_figures_is_judged_by_the_default_law(machine) -> None:
    assert calibrate.choose_mode(make_bundle(None), 4, 8)[0] == "sd"
    assert machine.measured == [(4, 8)]


def test_step_times_are_measured_once(machine) -> None:
    first = calibrate.measure(make_bundle(), 4, 8)
    machine.times = APART
    assert calibrate.measure(make_bundle(), 4, 8) == first
    assert machine.measured == [(4, 8)]


@pytest.mark.parametrize(
    "change", ["build", "num_draft", "branches", "cores", "quota", "engine"], ids=str
)
def test_what_changes_the_times_has_them_measured_again(machine, monkeypatch, change) -> None:
    calibrate.measure(make_bundle(), 4, 8)
    bundle, num_draft, branches = make_bundle(), 4, 8
    if change == "build":
        bundle = make_bundle(key="another")
    elif change == "num_draft":
        num_draft = 3
    elif change == "branches":
        branches = 7
    elif change == "cores":
        machine.cores = (0, 1, 2)
    elif change == "quota":
        machine.quota = 1.5
    else:
        monkeypatch.setattr(calibrate, "runtime_identity", lambda: "engine 2 on a machine")
    calibrate.measure(bundle, num_draft, branches)
    assert len(machine.measured) == 2


@pytest.mark.parametrize("value", [None, 3, [], {"decode_s": 1.0}, {"decode_s": "fast"}])
def test_remembered_times_of_another_form_are_measured_again(machine, tmp_path, value) -> None:
    calibrate.measure(make_bundle(), 4, 8)
    (key,) = Memo(tmp_path)._read()
    Memo(tmp_path).put(key, value)
    assert calibrate.measure(make_bundle(), 4, 8) == TIMES
    assert len(machine.measured) == 2
    assert calibrate.measure(make_bundle(), 4, 8) == TIMES
    assert len(machine.measured) == 2


def test_real_engines_are_timed_and_all_is_kept_in_the_memo_given(tmp_path, monkeypatch) -> None:
    """The probe's answer once went to the user's own cache."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "users"))
    times = calibrate.measure(tiny_bundle(max_batch=1), 2, 3, Memo(tmp_path / "given"))
    assert all(getattr(times, field.name) > 0 for field in fields(times))
    assert (tmp_path / "given" / FILE).exists()
    assert not (tmp_path / "users").exists()
