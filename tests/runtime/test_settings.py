"""What an LLM is opened with: what is measured, and what is left as it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from engines.bundle import Bundle, open_bundle
from engines.errors import BundleIncompatibleError, UsageError
from runtime import settings
from runtime.settings import Settings, settle
from runtime.spec.controller import Choices
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.length import Costs, Lengths
from runtime.spec.plan import PLAIN, Fixed
from tests.engines.tiny_bundles import write_compiled
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
POLICY = Fixed(PLAIN)
Announce = Callable[[str], None] | None
LENGTHS = Lengths(Costs(0.006, 0.001, 0.0004))


@dataclass
class Measured:
    """What would measure, its calls, and what ``calibrate`` finds out."""

    calls: list[tuple[object, ...]] = field(default_factory=list)
    layout: str = "sd"
    choices: Choices = Choices(("sd",), 4)  # noqa: RUF009 - frozen
    policy: Fixed | None = POLICY
    note: str = "sd is faster here"

    def controller(self, batch: int, *, is_cut: bool) -> Fixed | None:
        self.calls.append(("controller", batch, *(["cut"] if is_cut else [])))
        return self.policy

    def proposal_lengths(self, _bundle: object, *counts: int) -> Lengths:
        self.calls.append(("lengths", *counts))
        return LENGTHS

    def calibrate(self, _bundle: object, *wanted: object, announce: Announce) -> Measured:
        if announce is not None:
            announce("calibrate")
        self.calls.append(("calibrate", *wanted))
        return self

    def choose_fallback(self, _bundle: object, *counts: int, announce: Announce) -> Fallback:
        if announce is not None:
            announce("fallback")
        self.calls.append(("fallback", *counts))
        return Fallback.JIT

    def choose_saguaro(self, _bundle: object, *counts: int) -> float:
        self.calls.append(("saguaro", *counts))
        return 0.25


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    """Every answer is the one that is no default."""
    found = Measured()
    for name in ("calibrate", "choose_fallback", "choose_saguaro", "proposal_lengths"):
        monkeypatch.setattr(settings, name, getattr(found, name))
    monkeypatch.setattr(settings, "available_cores", lambda: (0, 1))
    monkeypatch.setattr(settings, "cpu_quota", lambda: None)
    return found


def decide(**options: object) -> Settings:
    return settle(tiny_bundle(), **{**OPEN, **options})  # type: ignore[arg-type]


def test_what_is_left_open_is_what_the_bundle_was_built_for() -> None:
    found = decide(fallback="zero")
    assert (found.num_draft, found.num_branches, found.max_batch) == (4, 6, 3)
    found = decide(fallback="zero", num_draft=2, branches=3, max_batch=1)
    assert (found.num_draft, found.num_branches, found.max_batch) == (2, 3, 1)


def test_limits_beyond_the_bundle_are_refused_with_one_rebuild_for_all() -> None:
    """A newcomer was told of one limit after another."""
    with pytest.raises(BundleIncompatibleError) as caught:
        decide(num_draft=9, branches=40, max_batch=8)
    for option in ("--num-draft 9", "--max-branches 40", "--max-batch 8"):
        assert option in str(caught.value)


def test_what_is_measured_is_announced() -> None:
    said: list[str] = []
    decide(mode="auto", announce=said.append)
    decide(mode="ssd", announce=said.append)
    decide(mode="sd", announce=said.append)
    assert said == ["calibrate", "fallback"]


def test_auto_is_measured_for_what_will_run(measured: Measured) -> None:
    assert decide(num_draft=2, branches=5, max_batch=1).fallback is Fallback.JIT
    assert measured.calls == [("fallback", 2, 5, 1)]


@pytest.mark.parametrize("mode", ["ar", "sd"])
def test_a_mode_without_misses_measures_no_fallback(mode: str, measured: Measured) -> None:
    """It takes a second on first use, and nothing would come of it."""
    found = decide(mode=mode)
    assert (found.fallback, found.policy, found.note) == (Fallback.ZERO, None, None)
    assert measured.calls == []


def test_auto_takes_the_calibrated_layout_and_leaves_the_rest_to_its_policy(
    measured: Measured,
) -> None:
    found = decide(mode="auto", max_batch=2)
    either = (Drafter.BOTH, Drafter.LOOKUP)
    assert measured.calls == [("calibrate", 4, 6, 2, tuple(Fallback), either), ("controller", 2)]
    assert (found.policy, found.note) == (POLICY, "sd is faster here")
    assert (found.placement.mode, found.placement.target_cores) == ("auto", (0, 1))
    measured.layout = "ssd"
    assert decide(mode="auto", fallback="lookup").placement.target_cores == (0,)
    assert measured.calls[2] == ("calibrate", 4, 6, 3, (Fallback.LOOKUP,), either)


def test_auto_without_a_choice_is_plain_decoding(measured: Measured) -> None:
    measured.layout, measured.policy = "ar", None
    found = decide(mode="auto")
    assert (found.placement.mode, found.policy) == ("ar", None)


@pytest.mark.parametrize("name", [each.value for each in Fallback])
def test_a_fallback_that_is_named_is_taken(name: str, measured: Measured) -> None:
    assert decide(fallback=name).fallback == name
    assert measured.calls == []


def test_saguaro_is_measured_for_what_follows_a_miss(measured: Measured) -> None:
    found = decide(verify="ratio", saguaro="auto", fallback="lookup")
    assert found.saguaro == 0.25
    assert measured.calls == [("saguaro", 4, 6, Fallback.LOOKUP)]


@pytest.mark.parametrize("share", [0, 0.0, 0.5, 1])
def test_a_saguaro_that_is_given_is_taken(share: float, measured: Measured) -> None:
    """0 is the strongest, and no default."""
    assert decide(verify="ratio", saguaro=share, fallback="zero").saguaro == share
    assert measured.calls == []


def test_saguaro_is_off_where_nothing_is_prepared(measured: Measured) -> None:
    """Auto never prepares here."""
    assert decide(mode="auto", verify="ratio", saguaro="auto").saguaro == 1.0
    measured.choices = Choices(("sd", "ssd"), 4, 6)
    assert decide(mode="auto", verify="ratio", saguaro="auto").saguaro == 0.25


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


def test_an_option_that_the_chosen_mode_does_not_have_is_in_the_note(measured: Measured) -> None:
    measured.layout, measured.policy, measured.note = "ar", None, "there is no draft"
    note = "there is no draft; --num-draft, --branches, --fallback has no effect in ar"
    assert decide(mode="auto", branches=2, fallback="lookup", num_draft=3).note == note


def test_an_unknown_mode_is_told_before_its_options() -> None:
    with pytest.raises(UsageError, match="unknown mode"):
        decide(mode="fast", fallback="jit")


def test_devices_are_placed_and_nothing_is_measured(measured: Measured) -> None:
    found = decide(device="cuda:0,cuda:1", fallback="zero")
    assert str(found.placement.devices) == "cuda:0,cuda:1"
    assert (found.placement.mode, found.placement.target_cores) == ("ssd", ())
    assert decide(device="cuda:0").fallback is Fallback.ZERO
    assert decide(device="cuda:0,cpu").placement.draft_cores == (1,)
    assert decide(device="cuda:0,cpu", fallback="lookup").fallback is Fallback.LOOKUP
    assert decide(mode="ar", device="cuda:0,cpu").placement.draft_cores == ()
    assert measured.calls == []


@pytest.mark.parametrize(
    ("device", "mode"), [("cuda:0", "sd"), ("cuda:0,cuda:1", "ssd"), ("cuda:0,cpu", "ssd")]
)
def test_auto_on_gpus_goes_by_the_devices_and_says_so(device: str, mode: str) -> None:
    found = decide(mode="auto", device=device)
    assert (found.placement.mode, found.policy) == (mode, None)
    assert found.note is not None
    assert f"auto chose {mode}, unmeasured" in found.note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"verify": "ratio"}, "--verify ratio is for pairs on the CPU"),
        ({"fallback": "jit"}, "--fallback jit would .*--fallback zero"),
        ({"fallback": "lookup"}, "--fallback lookup would .*--fallback zero"),
        ({"device": "cuda:0,cpu", "fallback": "jit"}, "--fallback jit would .*zero"),
        ({"tensor_parallel": 2}, "--tensor-parallel 2: .*no collective operations"),
        ({"tensor_parallel": 0}, "--tensor-parallel is 0"),
        ({"tensor_parallel": "2"}, "tensor_parallel is '2'"),
        ({"draft_sm_share": 0.25}, "--draft-sm-share .*ONNX Runtime"),
        ({"device": 0}, "device is 0, expected a name"),
        ({"backend": 3}, "backend is 3, expected a name"),
        ({"device": "tpu"}, "--device 'tpu' is no device"),
    ],
)
def test_what_gpus_cannot_do_yet_is_refused_by_name(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        decide(**{"device": "cuda:0", **options})


def test_a_backend_that_the_bundle_was_not_built_for_is_refused() -> None:
    with pytest.raises(BundleIncompatibleError, match=r"built for onnxruntime.*--backend tensorrt"):
        decide(backend="tensorrt")
    assert decide(backend="onnxruntime", fallback="zero").placement.mode == "ssd"


@pytest.fixture
def compiled(tmp_path: Path) -> Bundle:
    return open_bundle(write_compiled(tmp_path / "c"))


def test_compiled_engines_run_on_the_first_gpu_unless_told_otherwise(compiled: Bundle) -> None:
    found = settle(compiled, **OPEN)  # type: ignore[arg-type]
    assert str(found.placement.devices) == "cuda:0"
    found = settle(compiled, **OPEN, device="cuda:2", draft_sm_share=0.25)  # type: ignore[arg-type]
    assert found.placement.devices.draft_sm_share == 0.25
    with pytest.raises(BundleIncompatibleError, match="run on a GPU alone: --device cuda:0"):
        settle(compiled, **OPEN, device="cpu")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="does not run on the CPU"):
        settle(compiled, **OPEN, device="cuda:0,cpu")  # type: ignore[arg-type]


# --- adaptive length ---


@pytest.mark.parametrize("mode", ["sd", "ssd", "auto"])
def test_proposals_are_cut_only_where_that_is_asked_for(mode: str, measured: Measured) -> None:
    assert decide(mode=mode, fallback="zero").lengths is None
    measured.calls.clear()
    found = decide(mode=mode, fallback="zero", adaptive_length=True, max_batch=2)
    assert found.lengths is LENGTHS
    assert ("lengths", 4, 6, 2) in measured.calls
    if mode == "auto":
        assert ("controller", 2, "cut") in measured.calls


def test_where_auto_has_nothing_to_draft_with_nothing_is_cut(measured: Measured) -> None:
    measured.layout, measured.policy = "ar", None
    assert decide(mode="auto", adaptive_length=True).lengths is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "ar"}, "no effect in mode ar"),
        ({"verify": "ratio"}, "changes the law that --verify ratio emits"),
        ({"device": "cuda:0,cuda:1", "fallback": "zero"}, "never reach the host"),
    ],
)
def test_lengths_that_could_not_adapt_are_refused(options: dict[str, object], message: str) -> None:
    """Leaving a token out because of what it is changes the ratio rule's law."""
    with pytest.raises(UsageError, match=f"--adaptive-length.*{message}"):
        decide(**{"adaptive_length": True, **options})


@pytest.mark.parametrize(
    ("given", "mode", "has_draft", "expected"),
    [
        ("auto", "sd", True, Drafter.BOTH),
        ("auto", "ssd", True, Drafter.BOTH),
        ("auto", "sd", False, Drafter.LOOKUP),
        ("model", "ssd", True, Drafter.MODEL),
        ("lookup", "sd", True, Drafter.LOOKUP),
        ("lookup", "sd", False, Drafter.LOOKUP),
    ],
)
def test_who_drafts(given: str, mode: str, has_draft: bool, expected: Drafter) -> None:
    bundle = tiny_bundle(has_draft=has_draft)
    options: dict[str, object] = {**OPEN, "mode": mode, "drafter": given}
    found = settle(bundle, **options)  # type: ignore[arg-type]
    assert (found.drafter, found.placement.mode) == (expected, mode)
    assert ("looked up" in (found.note or "")) == (not has_draft)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("auto", (Drafter.BOTH, Drafter.LOOKUP)),
        ("both", (Drafter.BOTH, Drafter.LOOKUP)),
        ("model", (Drafter.MODEL,)),
        ("lookup", (Drafter.LOOKUP,)),
    ],
)
def test_auto_chooses_among_what_is_loaded(
    given: str, expected: tuple[Drafter, ...], measured: Measured
) -> None:
    decide(mode="auto", drafter=given)
    assert measured.calls[0][-1] == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drafter": "ngram"}, "unknown drafter 'ngram'; --drafter takes model, lookup, both"),
        ({"drafter": 3}, "drafter is 3, expected a name"),
        ({"drafter": "lookup"}, "mode ssd prepares outcomes with a draft model.*--mode sd"),
        ({"mode": "ar", "drafter": "lookup"}, "--drafter has no effect in mode ar"),
        ({"mode": "sd", "drafter": "lookup", "device": "cuda:0"}, "--drafter lookup with --device"),
        ({"mode": "sd", "drafter": "both", "device": "cuda:0"}, "use --device cuda:0,cpu"),
        ({"mode": "sd", "drafter": "lookup", "adaptive_length": True}, "lookups have none"),
    ],
)
def test_a_drafter_that_cannot_be_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        decide(**options)


def test_a_draft_on_the_cpu_may_look_up_beside_a_gpu() -> None:
    """By default it does not: that has never run on one."""
    options = {"mode": "ssd", "device": "cuda:0,cpu", "fallback": "zero"}
    assert decide(**options).drafter is Drafter.MODEL
    assert decide(**options, drafter="both").drafter is Drafter.BOTH
