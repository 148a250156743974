"""What an LLM is opened with: what is measured, and what is left as it was given."""

from __future__ import annotations

import pytest

from engines.errors import UsageError
from runtime import settings
from runtime.settings import Settings, settle
from runtime.spec.fallback import Fallback
from tests.helpers.tiny_bundle import tiny_bundle

OPEN: dict[str, object] = {
    "mode": "ssd",
    "verify": "coupled",
    "num_draft": None,
    "branches": None,
    "max_batch": None,
    "fallback": "auto",
    "saguaro": 1.0,
}


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The calls of what would measure; every answer is the one that is no default."""
    calls: list[tuple[object, ...]] = []

    def choose_mode(_bundle: object, *counts: int) -> tuple[str, str]:
        calls.append(("mode", *counts))
        return "sd", "sd is faster here"

    def choose_fallback(_bundle: object, *counts: int) -> Fallback:
        calls.append(("fallback", *counts))
        return Fallback.JIT

    def choose_saguaro(_bundle: object, *counts: int) -> float:
        calls.append(("saguaro", *counts))
        return 0.25

    monkeypatch.setattr(settings, "choose_saguaro", choose_saguaro)
    monkeypatch.setattr(settings, "choose_mode", choose_mode)
    monkeypatch.setattr(settings, "choose_fallback", choose_fallback)
    monkeypatch.setattr(settings, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(settings, "cpu_quota", lambda: None)
    return calls


def decide(**options: object) -> Settings:
    return settle(tiny_bundle(), **{**OPEN, **options})  # type: ignore[arg-type]


def test_what_is_left_open_is_what_the_bundle_was_built_for() -> None:
    found = decide(fallback="zero")
    assert (found.num_draft, found.num_branches, found.max_batch) == (4, 6, 3)
    found = decide(fallback="zero", num_draft=2, branches=3, max_batch=1)
    assert (found.num_draft, found.num_branches, found.max_batch) == (2, 3, 1)


def test_auto_is_measured_for_what_will_run(measured: list[tuple[object, ...]]) -> None:
    assert decide(num_draft=2, branches=5).fallback is Fallback.JIT
    assert measured == [("fallback", 2, 5)]


@pytest.mark.parametrize("mode", ["ar", "sd", "auto"])
def test_a_mode_without_misses_measures_no_fallback(
    mode: str, measured: list[tuple[object, ...]]
) -> None:
    """It takes a second on first use, and nothing would come of it."""
    found = decide(mode=mode)
    assert found.fallback is Fallback.ZERO
    assert measured == ([("mode", 4, 6)] if mode == "auto" else [])
    assert found.note == ("sd is faster here" if mode == "auto" else None)


@pytest.mark.parametrize("name", [each.value for each in Fallback])
def test_a_fallback_that_is_named_is_taken(name: str, measured: list[tuple[object, ...]]) -> None:
    assert decide(fallback=name).fallback == name
    assert measured == []


def test_saguaro_is_measured_for_what_follows_a_miss(measured: list[tuple[object, ...]]) -> None:
    found = decide(verify="ratio", saguaro="auto", fallback="lookup")
    assert found.saguaro == 0.25
    assert measured == [("saguaro", 4, 6, Fallback.LOOKUP)]


@pytest.mark.parametrize("share", [0, 0.0, 0.5, 1])
def test_a_saguaro_that_is_given_is_taken(share: float, measured: list[tuple[object, ...]]) -> None:
    """0 is the strongest, and no default."""
    assert decide(verify="ratio", saguaro=share, fallback="zero").saguaro == share
    assert measured == []


def test_saguaro_is_off_where_nothing_is_prepared(measured: list[tuple[object, ...]]) -> None:
    """Auto chooses sd here."""
    assert decide(mode="auto", verify="ratio", saguaro="auto").saguaro == 1.0
    assert measured == [("mode", 4, 6)]


@pytest.mark.parametrize(
    ("mode", "name", "value"),
    [
        *(("ar", "num_draft", 2), ("ar", "branches", 2), ("sd", "branches", 2)),
        *((mode, "fallback", "jit") for mode in ("ar", "sd")),
        *((mode, "saguaro", value) for mode in ("ar", "sd") for value in (0, "auto")),
    ],
)
def test_an_option_that_the_mode_does_not_have_is_refused(
    mode: str, name: str, value: object
) -> None:
    """It was ignored without a word."""
    option = "--" + name.replace("_", "-")
    with pytest.raises(UsageError, match=rf"^{option} has no effect in mode {mode}"):
        decide(mode=mode, verify="ratio", **{name: value})


def test_an_option_that_the_chosen_mode_does_not_have_is_in_the_note() -> None:
    note = "sd is faster here; --branches, --fallback has no effect in sd"
    assert decide(mode="auto", branches=2, fallback="lookup", num_draft=3).note == note


def test_an_unknown_mode_is_told_before_its_options() -> None:
    with pytest.raises(UsageError, match="unknown mode"):
        decide(mode="fast", fallback="jit")
