"""Profiles: what is read means what it says, and what is wrong is named."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from runtime.bench.replay.profile import profile_of, read_profile
from runtime.bench.replay.shipped import shipped
from runtime.spec.cost.laws import paper_ranks
from runtime.spec.fallback import Fallback, ProposalKind

PROFILE = {
    "format": "ssd-replay",
    "version": 1,
    "about": "a test",
    "laws": {
        "even": {
            "hit": {"accept": [0.8], "exponent": 1.93},
            "jit": {"histogram": [0.5, 0.25, 0.25]},
            "none": {"rejected": [0.4, 0.2]},
            "sd": {"accept": [0.7, 0.9]},
        }
    },
    "runs": [
        {
            "name": "one",
            "law": "even",
            "batch": 2,
            "target_ms": {"tokens": [1, 3], "ms": [[10, 14]]},
            "draft_ms": 2,
            "draft_beside_ms": 2.5,
            "num_draft": 2,
            "num_branches": 6,
        }
    ],
}


def changed(path: str, value: object) -> dict:
    """PROFILE with another value at a place such as ``runs.0.batch``; None takes it away."""
    record: dict = deepcopy(PROFILE)
    *parents, last = path.split(".")
    place = record
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return record


def test_what_is_given_and_what_follows() -> None:
    profile = profile_of(PROFILE, "here")
    laws, sd = (profile.laws["even"].laws(mode).kinds for mode in ("ssd", "sd"))
    np.testing.assert_allclose(laws[ProposalKind.HIT].accepted(3), [0.2, 0.16, 0.128, 0.512])
    np.testing.assert_allclose(laws[ProposalKind.JIT].accepted(2), [0.5, 0.25, 0.25])
    np.testing.assert_allclose(sd[ProposalKind.JIT].accepted(2), [0.3, 0.07, 0.63])
    for kind in (ProposalKind.HIT, ProposalKind.JIT):
        np.testing.assert_allclose(laws[kind].rejected[:9], paper_ranks(1.93, 9))
    np.testing.assert_allclose(laws[ProposalKind.NONE].bonus, [0.4, 0.2])
    run = profile.runs[0]
    assert run.fallback is Fallback.JIT
    times = run.times
    assert times.target.seconds(2, 2) == pytest.approx(0.012)
    assert times.target_beside.seconds(2, 3) == pytest.approx(0.014)
    assert (times.draft.seconds(2, 6), times.draft_beside.seconds(2, 6)) == (0.002, 0.0025)


@pytest.mark.parametrize("name", shipped())
def test_shipped_profiles_say_where_their_figures_are_from(name: str) -> None:
    profile = read_profile(name)
    assert profile.about
    for run in profile.runs:
        assert run.published
        profile.laws[run.law].laws("ssd")
    assert all(law.about for law in profile.laws.values())


def test_the_published_law_is_the_one_that_was_logged() -> None:
    """Budgets are promised for this law: 5.68 tokens after a hit, 4.01 after a miss, 88 % hits."""
    profile = read_profile("budgets")
    kinds = profile.laws["greedy"].laws("ssd").kinds
    hit, jit = kinds[ProposalKind.HIT], kinds[ProposalKind.JIT]
    assert hit.tokens(7) == pytest.approx(5.68, abs=0.005)
    assert jit.tokens(7) == pytest.approx(4.01, abs=0.005)
    sd = profile.laws["greedy"].laws("sd").kinds[ProposalKind.JIT]
    assert sd.tokens(6) == pytest.approx(5.03, abs=0.005)
    assert hit.rejected[:3].sum() == hit.bonus[:3].sum() == pytest.approx(0.88, abs=0.001)
    budgets = [(run.batch, run.target_ms, run.draft_ms, run.goal) for run in profile.runs]
    assert budgets == [(1, 15.0, 2.2, 300), (1, 15.0, 1.0, 345), (16, 20.2, 1.5, 3900)]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("format", "other", "no profile"),
        ("version", 2, "version 2"),
        ("runs", [], "no run"),
        ("runs.0.law", "odd", "'odd'"),
        ("runs.0.batch", 0, "batch is 0"),
        ("runs.0.batch", "2", "batch"),
        ("runs.0.bach", 2, "bach"),
        ("runs.0.num_draft", 65, "num_draft is 65"),
        ("runs.0.draft_ms", 0, "draft_ms is 0"),
        ("runs.0.draft_ms", float("nan"), "draft_ms is nan"),
        ("runs.0.draft_ms", 1e-320, "expected 1e-06 to"),
        ("runs.0.target_ms.ms", [[0, 0]], "ms has 0, expected 1e-06 or more"),
        ("runs.0.name", "", "name is ''"),
        ("runs.0.name", "two\nlines", "expected one printable line"),
        ("runs.0.goal", float("nan"), "published and goal are [nan]"),
        ("runs.0.published", {"ar": -5}, "published and goal are [-5.0]"),
        ("laws.even.hit.bonus", [0.5], "bonus goes with rejected"),
        ("version", True, "version True"),
        ("runs.0.target_ms.tokens", [3, 1], "tokens are (3, 1)"),
        ("runs.0.fallback", "lookup", "nothing to look up"),
        ("runs.0.fallback", "jot", "'jot'"),
        ("runs.0.published", {"auto": 3}, "'auto'"),
        ("runs.0.target_ms", None, "target_ms is missing"),
        ("laws.even.hit", {"accept": [0.8]}, "law 'even' needs"),
        ("laws.even.hit.accept", [1.2], "accept is [1.2]"),
        ("laws.even.hit.histogram", [1.0], "not both"),
        ("laws.even.jit.histogram", [0.5, 0.2], "sums to 0.7"),
        ("laws.even.jit.histogram", [0.9, 0.2], "sums to 1.1"),
        ("laws.even.hit.exponent", 0, "exponent is 0"),
        ("laws.even.none.exponent", 1.0, "not both"),
        ("laws.even.none.rejected", [0.9, 0.9], "sums to 1.8"),
    ],
)
def test_what_is_wrong_is_named(path: str, value: object, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        profile_of(changed(path, value), "here")
    assert expected in str(caught.value)
    assert "here" in str(caught.value)


def test_what_rounding_adds_is_no_probability() -> None:
    """A hit rate of 101 % turns the shares of a batch negative."""
    laws = profile_of(changed("laws.even.none", {"rejected": [0.8, 0.209]}), "here").laws["even"]
    assert laws.laws("ssd").kinds[ProposalKind.NONE].hit_rate(0, 4) == pytest.approx(1.0)


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    path.write_text(json.dumps(PROFILE).replace('"batch": 2', '"batch": 1, "batch": 2'))
    with pytest.raises(UsageError, match="field 'batch' is there twice"):
        read_profile(str(path))


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "zero.json"
    path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is longer than"):
        read_profile(str(path))


def test_files_are_read_by_path_and_bad_ones_refused(tmp_path: Path) -> None:
    good = tmp_path / "mine.json"
    good.write_text(json.dumps(PROFILE))
    assert read_profile(str(good)).about == "a test"
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    for name, expected in (
        (str(bad), "not JSON"),
        (str(tmp_path / "absent.json"), "No such file"),
        ("budget", "budgets"),
    ):
        with pytest.raises(UsageError, match=expected):
            read_profile(name)
