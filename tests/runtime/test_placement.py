"""Who gets which cores, and when a mode is not what was asked for."""

from __future__ import annotations

import pytest

from engines.errors import UsageError
from runtime.devices import parse_devices
from runtime.placement import Placement, place, place_on_gpus

FOUR = (0, 1, 2, 3)


@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_modes_that_take_turns_give_the_target_all_cores(mode: str) -> None:
    assert place(mode, FOUR, None, has_draft=True) == Placement(mode, FOUR, FOUR)


def test_ssd_gives_the_draft_a_core_of_its_own() -> None:
    assert place("ssd", FOUR, None, has_draft=True) == Placement("ssd", (0, 1, 2), (3,))
    assert place("ssd", (5, 9), None, has_draft=True) == Placement("ssd", (5,), (9,))


@pytest.mark.parametrize(("cores", "quota"), [((4,), None), ((4, 5), 1.0), ((4, 5, 6), 0.3)])
def test_with_one_core_ssd_runs_as_sd_and_says_so(cores, quota) -> None:
    """Two engines on one core would only take turns, each waiting for the other's slice."""
    placement = place("ssd", cores, quota, has_draft=True)
    assert (placement.mode, placement.target_cores, placement.draft_cores) == ("sd", (4,), (4,))
    assert placement.note is not None
    assert "sd" in placement.note
    assert "core" in placement.note


@pytest.mark.parametrize(
    ("quota", "usable"), [(None, 4), (9.0, 4), (4.0, 4), (2.5, 3), (2.0, 2), (1.0, 1), (0.5, 1)]
)
def test_a_quota_limits_the_cores(quota, usable) -> None:
    """A container with a quota sees all cores; a thread beyond the quota only waits."""
    assert place("ar", FOUR, quota, has_draft=False).target_cores == FOUR[:usable]


def test_outcomes_are_not_prepared_without_a_draft() -> None:
    with pytest.raises(UsageError, match=r"ssd prepares outcomes with a draft.*--mode sd.*--draft"):
        place("ssd", FOUR, None, has_draft=False)


@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_plain_decoding_and_lookups_need_no_draft(mode: str) -> None:
    assert place(mode, FOUR, None, has_draft=False) == Placement(mode, FOUR, FOUR)


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_gpu_waits_for_no_lookups(mode: str) -> None:
    with pytest.raises(UsageError, match=r"cuda:0 needs a draft.*--device cpu --mode sd"):
        place_on_gpus(mode, parse_devices("cuda:0"), FOUR, None, has_draft=False)
    assert place_on_gpus("ar", parse_devices("cuda:0"), FOUR, None, has_draft=False).mode == "ar"


@pytest.mark.parametrize("mode", ["", "AR", "auto", "tree"])
def test_an_unknown_mode_is_refused_with_the_known_ones(mode: str) -> None:
    with pytest.raises(UsageError, match="ar, sd, ssd or auto"):
        place(mode, FOUR, None, has_draft=True)
