"""What is chosen at load, from scripted times and texts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from engines.manifest import DraftFigures
from runtime.calibrate import (
    bundle_laws,
    calibrate,
    choose,
    choose_fallback,
    choose_saguaro,
    pair_times,
    proposal_lengths,
)
from runtime.calibrate.times import MachineTimes, Measured, Quality
from runtime.memo import Memo
from runtime.spec.controller import Choices
from runtime.spec.cost import Grid
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.replay import RankedText
from runtime.spec.saguaro import PairLaws, best_scale

GOOD, BAD = DraftFigures((0.9, 0.05)), DraftFigures((0.05, 0.05))
QUIET = Quality(0.01, 0.0)


def measured(step_s: float, token_s: float, draft_s: float = 0.001) -> Measured:
    """A target with so many seconds a step and a further token, and a draft; one row or four."""
    target = [step_s, step_s + 8 * token_s]
    draft = [draft_s, 2 * draft_s]
    rows = 1, 4
    return Measured(
        Grid(rows, (1, 9), (tuple(target), tuple(2 * each for each in target))),
        Grid(rows, (1, 16), (tuple(draft), tuple(2 * each for each in draft))),
    )


# The second core makes the target 1.5 times faster; the draft is cheap.
SHARED = MachineTimes(measured(0.010, 0.0005), measured(0.015, 0.0008), QUIET)
# A target that cannot use more cores, and a draft that costs a third of a step.
APART = MachineTimes(measured(0.010, 0.0001, 0.003), measured(0.010, 0.0001, 0.003), QUIET)


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
    """Two cores, scripted times and texts (none: the maker's figures are all there is)."""
    state = SimpleNamespace(
        times=SHARED, cores=(0, 1), quota=None, measured=[], texts=[], laws=None
    )
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.setattr(choose, "available_cores", lambda: state.cores)
    monkeypatch.setattr(choose, "cpu_quota", lambda: state.quota)
    monkeypatch.setattr(choose, "machine_key", lambda _bundle: f"cores {state.cores}")
    monkeypatch.setattr(choose, "ranked_texts", lambda _bundle, _memo: state.texts)

    def measure(_bundle, num_draft, num_branches, batch, _memo, announce=None):
        if announce is not None:
            announce()
        state.measured.append((num_draft, num_branches, batch))
        times = state.times
        return times if num_branches else MachineTimes(times.together, None, times.quality)

    def pair_laws(_bundle, temperature, _memo):
        state.measured.append(temperature)
        return state.laws

    monkeypatch.setattr(choose, "measure", measure)
    monkeypatch.setattr(choose, "pair_laws", pair_laws)
    return state


# --- placement ---


@pytest.mark.usefixtures("machine")
def test_who_waits_is_told_for_what_and_what_skips_it() -> None:
    said: list[str] = []
    calibrate(make_bundle(), 4, 8, 1, announce=said.append)
    choose_fallback(make_bundle(), 4, 8, announce=said.append)
    assert "for --mode auto, once per bundle" in said[0]
    assert "--mode ar or sd skips it" in said[0]
    assert "for --fallback auto" in said[1]


def test_a_target_that_uses_all_cores_gets_them(machine) -> None:
    found = calibrate(make_bundle(), 4, 8, 2)
    assert found.layout == "sd"
    assert found.times == SHARED.together.times
    assert found.choices.modes == ("sd",)
    assert "on all cores" in found.note
    assert machine.measured == [(4, 8, 2)]


def test_a_target_that_gains_nothing_by_them_runs_beside_its_draft(machine) -> None:
    machine.times = APART
    found = calibrate(make_bundle(), 4, 8, 1)
    assert found.layout == "ssd"
    assert found.choices.modes == ("sd", "ssd")
    assert (found.choices.num_draft, found.choices.num_branches) == (4, 8)
    assert "beside the draft" in found.note


@pytest.mark.parametrize(("step_s", "token_s", "layout"), [(0.0130, 1, "sd"), (0.0102, 8, "ssd")])
def test_a_bet_that_makes_plain_decoding_slower_needs_more(
    machine, step_s: float, token_s: int, layout: str
) -> None:
    """The texts to come may be hard ones, and the placement stays. Both gain 8 %."""
    machine.times = MachineTimes(
        measured(0.010, 0.0001, 0.0012), measured(step_s, token_s * 0.0001, 0.0012), QUIET
    )
    found = calibrate(make_bundle(), 4, 8, 1)
    assert "side by side x1.08 of taking turns" in found.note
    assert found.layout == layout


@pytest.mark.parametrize(("cores", "quota"), [((0,), None), ((0, 1), 1.0)])
def test_with_one_core_nothing_runs_side_by_side(machine, cores, quota) -> None:
    machine.times, machine.cores, machine.quota = APART, cores, quota
    found = calibrate(make_bundle(), 4, 8, 1)
    assert found.layout == "sd"
    assert "one core" in found.note


def test_a_bundle_without_branches_takes_turns_and_says_why(machine) -> None:
    """It said that one core served both, on any machine."""
    found = calibrate(make_bundle(), 4, 0, 1)
    assert (found.layout, found.choices.modes) == ("sd", ("sd",))
    assert "no branches" in found.note
    assert machine.measured == [(4, 0, 1)]


def test_a_machine_that_was_busy_decides_nothing(machine) -> None:
    """Beside another program two threads on two cores are slower than one: ssd was chosen."""
    machine.times = MachineTimes(APART.together, None, Quality(0.5, 0.5))
    found = calibrate(make_bundle(), 4, 8, 1)
    assert found.layout == "sd"
    assert "busy" in found.note


@pytest.mark.parametrize(("draft", "num_draft"), [(False, 4), (True, 0)])
def test_nothing_to_speculate_with_is_plain_decoding_without_measuring(
    machine, draft, num_draft
) -> None:
    found = calibrate(make_bundle(draft=draft), num_draft, 8, 1)
    assert found.layout == "ar"
    assert "no draft" in found.note
    assert found.controller(1) is None
    assert machine.measured == []


@pytest.mark.parametrize("draft", [False, True])
def test_lookups_alone_need_no_draft_and_no_texts_of_it(machine, monkeypatch, draft) -> None:
    """A bundle without a draft had nothing to speculate with."""
    monkeypatch.setattr(choose, "ranked_texts", None)
    found = calibrate(make_bundle(draft=draft), 4, 8, 2, drafters=(Drafter.LOOKUP,))
    assert found.layout == "sd"
    assert found.choices == Choices(("sd",), 4, drafters=(Drafter.LOOKUP,))
    assert "looked up in the text" in found.note
    assert machine.measured == [(4, 0, 2)]
    policy = found.controller(2)
    assert policy is not None
    assert policy.watches_lookups
    assert policy.note.startswith("auto runs ar (by calibration")


@pytest.mark.parametrize("times", [SHARED, APART])
def test_a_draft_that_may_be_looked_past_is_planned_so(machine, times) -> None:
    machine.times = times
    drafters = Drafter.BOTH, Drafter.LOOKUP
    found = calibrate(make_bundle(), 4, 8, 1, drafters=drafters)
    assert found.choices.drafters == drafters
    assert {plan.drafter for plan in found.choices.plans()} == {Drafter.BOTH}
    assert found.choices.lookup(0.1) is not None


# --- what the controller starts from ---


def test_texts_of_this_pair_outweigh_the_makers_figures(machine) -> None:
    """The default draft's maker measured 0.42 on its own texts; on prompts it is 0.29."""
    for figures, rank, begins in ((GOOD, 9, "auto runs ar"), (BAD, 0, "auto runs sd K")):
        machine.texts = [text_of([rank] * 200)]
        policy = calibrate(make_bundle(figures), 4, 8, 1).controller(1)
        assert policy is not None
        assert policy.note.startswith(begins)


@pytest.mark.usefixtures("machine")
def test_a_draft_without_figures_is_judged_by_the_default_law() -> None:
    policy = calibrate(make_bundle(None), 4, 8, 1).controller(1)
    assert policy is not None
    assert policy.note.startswith("auto runs sd K")


def test_a_fallback_that_is_named_is_the_only_one(machine) -> None:
    machine.times = APART
    found = calibrate(make_bundle(), 4, 8, 1, (Fallback.JIT,))
    assert {plan.fallback for plan in found.choices.plans() if plan.mode == "ssd"} == {Fallback.JIT}


@pytest.mark.usefixtures("machine")
def test_changes_of_mind_go_to_the_log(caplog) -> None:
    with caplog.at_level("INFO", logger="runtime"):
        policy = calibrate(make_bundle(), 4, 8, 1).controller(1)
    assert policy is not None
    assert caplog.messages == [policy.note]


def test_laws_are_those_of_rounds_of_every_kind(machine, tmp_path) -> None:
    """Rounds with each fallback are replayed, or kinds would keep the maker's figures."""
    machine.texts = [text_of([0, 0, 1] * 100)]
    laws = bundle_laws(make_bundle(BAD), 2, 8, Memo(tmp_path))
    for kind in (ProposalKind.HIT, ProposalKind.JIT):
        assert laws.kinds[kind].accept[0] > 0.4
    assert laws.kinds[ProposalKind.NONE].bonus[0] > 0.3


# --- the fallback of a fixed mode ---


def test_misses_wait_for_drafts_that_are_good_and_cheap(machine) -> None:
    """The bonus token is never among the candidates, yet all drafts are right."""
    machine.texts = [text_of([0, 0, 0, 0, 99] * 60)]
    assert choose_fallback(make_bundle(), 4, 8) is Fallback.JIT


def test_misses_copy_where_texts_repeat_themselves(machine) -> None:
    machine.texts = [text_of([99] * 300, period=7)]
    assert choose_fallback(make_bundle(), 4, 8) is Fallback.LOOKUP


def test_misses_do_not_wait_for_drafts_that_are_wrong(machine) -> None:
    machine.texts = [text_of([99] * 300)]
    assert choose_fallback(make_bundle(GOOD), 4, 8) is not Fallback.JIT


# --- adaptive lengths ---


def test_proposals_end_by_what_tokens_cost_on_this_machine(machine) -> None:
    machine.texts = [text_of([0] * 200)]
    costs = proposal_lengths(make_bundle(), 4, 8).costs
    assert costs.verify_s == pytest.approx(0.0005)
    assert costs.draft_s == pytest.approx(0.001)
    assert 0.002 < costs.token_s < 0.005  # all is accepted: five tokens take 16 ms


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
    machine.times = MachineTimes(SHARED.together, measured(0.015, 0.0008, 0.004), QUIET)
    found = choose_saguaro(make_bundle(), 3, 8, Fallback.JIT, 0.7)
    times = pair_times(make_bundle(), 3, 8, 1)
    machine.measured.pop()
    assert found == best_scale(machine.laws, times, 3, 8, Fallback.JIT)
    assert found < 1
    assert machine.measured == [(3, 8, 1), 0.7]
    assert choose_saguaro(make_bundle(), 3, 8, Fallback.JIT, 0.7) == found
    assert machine.measured == [(3, 8, 1), 0.7]


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
    assert machine.measured == [(3, 8, 1), 1.0]
