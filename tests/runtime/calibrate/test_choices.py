"""The choices of ``auto`` from scripted step times and texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engines.manifest import DraftFigures
from runtime.calibrate import choose, choose_fallback, choose_mode, choose_saguaro
from runtime.spec.cost import StepTimes
from runtime.spec.fallback import Fallback
from runtime.spec.replay import RankedText
from runtime.spec.saguaro import PairLaws, best_scale

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


def make_bundle(figures: DraftFigures | None = GOOD, *, draft: bool = True):
    return SimpleNamespace(
        draft=object() if draft else None,
        manifest=SimpleNamespace(draft_figures=figures, build_key="build"),
    )


def text_of(ranks: list[int], period: int = 0) -> RankedText:
    """All tokens different, or a phrase of ``period`` tokens again and again."""
    answer = [index % period if period else 100 + index for index in range(len(ranks))]
    return RankedText((7, 8, 9), tuple(answer), tuple(ranks))


@pytest.fixture
def machine(monkeypatch, tmp_path: Path):
    """Two cores, scripted step times and texts (none: the maker's figures are all there is)."""
    state = SimpleNamespace(times=TIMES, cores=(0, 1), quota=None, measured=[], texts=[], laws=None)
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.setattr(choose, "available_cores", lambda: state.cores)
    monkeypatch.setattr(choose, "cpu_quota", lambda: state.quota)
    monkeypatch.setattr(choose, "machine_key", lambda _bundle: f"cores {state.cores}")
    monkeypatch.setattr(choose, "ranked_texts", lambda _bundle, _memo: state.texts)

    def measure(_bundle, num_draft, num_branches, _memo):
        state.measured.append((num_draft, num_branches))
        return state.times

    def pair_laws(_bundle, temperature, _memo):
        state.measured.append(temperature)
        return state.laws

    monkeypatch.setattr(choose, "measure", measure)
    monkeypatch.setattr(choose, "pair_laws", pair_laws)
    return state


# --- the mode ---


def test_a_draft_that_is_seldom_right_is_left_out(machine) -> None:
    mode, why = choose_mode(make_bundle(BAD), 4, 8)
    assert mode == "ar"
    assert "ar 100" in why
    assert machine.measured == [(4, 8)]


def test_a_good_cheap_draft_speculates_with_the_target_on_all_cores(machine) -> None:
    assert choose_mode(make_bundle(), 4, 8)[0] == "sd"
    assert machine.measured == [(4, 8)]


def test_a_gain_that_other_prompts_may_eat_up_is_not_taken(machine) -> None:
    """The acceptance is that of other text: a small predicted gain is no gain."""
    machine.times = replace(TIMES, verify_all_s=0.034, verify_s=0.05, verify_none_s=0.05)
    mode, why = choose_mode(make_bundle(), 4, 8)
    sd = float(why.partition("sd ")[2].partition(",")[0])
    assert 100 < sd < 115
    assert mode == "ar"


def test_a_good_draft_beside_a_target_that_gains_nothing_runs_ahead(machine) -> None:
    machine.times = APART
    mode, why = choose_mode(make_bundle(), 4, 8)
    assert mode == "ssd"
    assert all(f"{name} " in why for name in ("ar", "sd", "ssd"))


@pytest.mark.parametrize(("cores", "quota"), [((0,), None), ((0, 1), 1.0)])
def test_one_core_never_chooses_ssd(machine, cores, quota) -> None:
    """ssd would run as sd there, so its rate is neither measured nor offered."""
    machine.times, machine.cores, machine.quota = APART, cores, quota
    mode, why = choose_mode(make_bundle(), 4, 8)
    assert mode == "sd"
    assert "ssd" not in why
    assert machine.measured == [(4, 0)]


@pytest.mark.parametrize(("draft", "num_draft"), [(False, 4), (True, 0)])
def test_nothing_to_speculate_with_is_plain_decoding_without_measuring(
    machine, draft, num_draft
) -> None:
    mode, why = choose_mode(make_bundle(draft=draft), num_draft, 8)
    assert mode == "ar"
    assert "no draft" in why
    assert machine.measured == []


def test_a_draft_without_figures_is_judged_by_the_default_law(machine) -> None:
    assert choose_mode(make_bundle(None), 4, 8)[0] == "sd"
    assert machine.measured == [(4, 8)]


def test_texts_of_this_pair_outweigh_the_makers_figures(machine) -> None:
    """The default draft's maker measured 0.42 on its own texts; on prompts it is 0.29."""
    machine.texts = [text_of([9] * 200)]
    assert choose_mode(make_bundle(GOOD), 4, 8)[0] == "ar"
    machine.texts = [text_of([0] * 200)]
    assert choose_mode(make_bundle(BAD), 4, 8)[0] == "sd"


# --- the fallback ---


def test_misses_wait_for_drafts_that_are_good_and_cheap(machine) -> None:
    """The bonus token is never among the candidates, yet all drafts are right."""
    machine.texts = [text_of([0, 0, 0, 0, 99] * 60)]
    assert choose_fallback(make_bundle(), 4, 8) is Fallback.JIT
    machine.times = replace(TIMES, draft_s=0.1, branches_s=0.001)
    assert choose_fallback(make_bundle(), 4, 8) is not Fallback.JIT


def test_misses_copy_where_texts_repeat_themselves(machine) -> None:
    machine.texts = [text_of([99] * 300, period=7)]
    assert choose_fallback(make_bundle(), 4, 8) is Fallback.LOOKUP


def test_misses_do_not_wait_for_drafts_that_are_wrong(machine) -> None:
    machine.texts = [text_of([99] * 300)]
    assert choose_fallback(make_bundle(GOOD), 4, 8) is not Fallback.JIT


# --- Saguaro ---


def peaked_laws(num_places: int = 40) -> PairLaws:
    rng = np.random.default_rng(2)
    laws = [-np.sort(-rng.dirichlet(np.full(12, 0.5), num_places)) for _ in range(2)]
    rank = rng.integers(0, 12, num_places)
    return PairLaws(
        draft=laws[0],
        target=laws[1],
        token_target=laws[1][np.arange(num_places), rank],
        token_rank=rank,
        left=np.arange(num_places, 0, -1),
    )


def test_the_scale_is_the_best_one_and_is_remembered(machine) -> None:
    machine.laws = peaked_laws()
    machine.times = replace(TIMES, draft_s=0.03, branches_s=0.001)
    found = choose_saguaro(make_bundle(), 3, 8, Fallback.JIT, 0.7)
    assert found == best_scale(machine.laws, machine.times, 3, 8, Fallback.JIT)
    assert found < 1
    assert machine.measured == [(3, 8), 0.7]
    assert choose_saguaro(make_bundle(), 3, 8, Fallback.JIT, 0.7) == found
    assert machine.measured == [(3, 8), 0.7]


@pytest.mark.parametrize("change", ["num_draft", "branches", "fallback", "temperature", "cores"])
def test_what_the_scale_hangs_on_has_it_measured_again(machine, change) -> None:
    machine.laws = peaked_laws()
    choose_saguaro(make_bundle(), 3, 8)
    if change == "cores":
        machine.cores = (0, 1, 2)
    choose_saguaro(
        make_bundle(),
        2 if change == "num_draft" else 3,
        7 if change == "branches" else 8,
        Fallback.JIT if change == "fallback" else Fallback.ZERO,
        0.5 if change == "temperature" else 1.0,
    )
    assert len(machine.measured) == 4


@pytest.mark.parametrize("laws", [None, peaked_laws(3)], ids=["no text", "short texts"])
def test_without_texts_to_judge_by_nothing_is_shaped(machine, laws) -> None:
    machine.laws = laws
    assert choose_saguaro(make_bundle(), 3, 8) == 1


@pytest.mark.parametrize("value", [None, 0.55, "0.5", True, []])
def test_a_remembered_scale_that_cannot_be_is_measured_again(machine, monkeypatch, value) -> None:
    machine.laws = peaked_laws()
    monkeypatch.setattr(choose.Memo, "get", lambda _self, _key: value)
    choose_saguaro(make_bundle(), 3, 8)
    assert machine.measured == [(3, 8), 1.0]
