"""Plans against graphs, with a second ONNX Runtime in the place of TensorRT."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import export.check.engine
from engines.bundle import Bundle
from engines.codec import encode
from engines.errors import BackendError
from engines.manifest import DRAFT, TARGET, EngineManifest
from export.bench.calls import profiles_of
from export.check.engine import OnnxEngine, PlanEngine, Text
from export.check.fidelity import Fidelity
from export.check.parity import (
    ANSWER_TOKENS,
    CHOICES,
    Answers,
    CallParity,
    compare_answers,
    compare_calls,
    compare_plans,
    judge,
    tolerance_for,
    wrong_choice,
)
from export.check.runners import manifest_of, onnx_runner, without_chatter
from export.check.verify import EngineCheck, Verification
from export.cli.verify import text
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.polygraphy


def manifest_for(bundle: Bundle, role: str) -> EngineManifest:
    manifest = manifest_of(bundle, role)
    assert manifest is not None
    return manifest


def vocab_map_for(bundle: Bundle, role: str) -> np.ndarray | None:
    path = bundle.vocab_map_path() if role == DRAFT else None
    return None if path is None else np.load(path).astype(np.int64)


def stand_in(bundle: Bundle, role: str, fault: str | None = None) -> Any:
    """A runner that is called like a plan's, and wrong in one output when asked."""
    runner = onnx_runner(bundle.model_path(role), 1)
    runner.name = "stand-in"
    inner = runner.infer_impl

    def infer_impl(feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = dict(inner(feed))
        if fault is not None:
            outputs[fault] = outputs[fault] + np.ones((), outputs[fault].dtype)
        return outputs

    runner.infer_impl = infer_impl
    return runner


def compare(role: str, fault: str | None = None) -> dict[str, CallParity]:
    bundle = tiny_bundle()
    with without_chatter():
        found = compare_calls(
            onnx_runner(bundle.model_path(role), 1),
            lambda _profile: stand_in(bundle, role, fault),
            manifest_for(bundle, role),
            vocab_map_for(bundle, role),
            lambda *_: None,
        )
    return {call.kind: call for call in found}


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_an_engine_that_computes_the_same_passes_every_call(role: str) -> None:
    found = compare(role)
    names = [profile.name for profile in profiles_of(manifest_for(tiny_bundle(), role))]
    assert [kind.replace("root", "step") for kind in found] == names
    for call in found.values():
        assert (call.passed, call.reason) == (True, None)
        assert call.max_abs_difference < 1e-4


@pytest.mark.parametrize(
    ("role", "fault", "words"),
    [
        (TARGET, "logits", "logits differs by 1"),
        (TARGET, "kv.1.value.next", "kv.1.value.next differs by 1"),
        (TARGET, "next", "its own logits say"),
        (TARGET, "accepted", "its own logits say"),
        (DRAFT, "sample", "its own logits say"),
        (DRAFT, "kv.0.key.next", "kv.0.key.next differs by 1"),
    ],
)
def test_one_wrong_output_fails_every_call_and_is_named(role: str, fault: str, words: str) -> None:
    for call in compare(role, fault).values():
        assert not call.passed
        assert call.reason is not None
        assert words in call.reason
        if fault in CHOICES:
            assert call.reason.startswith(f"{fault} is ")


def test_outputs_that_are_no_number_fail() -> None:
    bundle = tiny_bundle()
    broken = stand_in(bundle, TARGET)
    inner = broken.infer_impl
    broken.infer_impl = lambda feed: {
        name: value * np.float32(np.nan) if name == "logits" else value
        for name, value in inner(feed).items()
    }
    with without_chatter():
        found = compare_calls(
            onnx_runner(bundle.model_path(TARGET), 1),
            lambda _profile: broken,
            bundle.target,
            None,
            lambda *_: None,
        )
    assert not any(call.passed for call in found)


def test_a_layer_is_judged_by_its_own_logits() -> None:
    """A plan that rounds a tie the other way, and decides by that, is right."""
    logits = np.zeros((1, 2, 4), np.float32)
    logits[0, 0, 2] = logits[0, 1, 3] = 1
    feed = {
        "tokens": np.array([[9, 2]]),
        "logit_rows": np.array([[0, 1]]),
        "num_draft": np.array([1]),
    }
    right = {"logits": logits, "accepted": np.array([1]), "next": np.array([3])}
    assert wrong_choice(feed, right, None) is None
    assert wrong_choice(feed, {**right, "next": np.array([2])}, None) == (
        "next is [2], its own logits say [3]"
    )
    mapped = {"logits": logits, "sample": np.array([[20, 30]])}
    assert wrong_choice({}, mapped, np.array([0, 10, 20, 30])) is None


class StandInPlan:
    """The part of ``OpenPlan`` that an engine uses, over ONNX Runtime with caches in place."""

    def __init__(self, bundle: Bundle, model: Bundle | None = None) -> None:
        self.manifest = bundle.target
        self.facts = SimpleNamespace(profiles=profiles_of(bundle.target))
        self.asked: list[int] = []
        self.fails = False
        self._model = (model or bundle).model_path(TARGET)

    def runner(self, profile: int) -> Any:
        self.asked.append(profile)
        inner = onnx_runner(self._model, 1)

        def infer(feed: Any, check_inputs: bool, copy_outputs_to_host: bool) -> dict[str, Any]:
            assert not copy_outputs_to_host
            assert not check_inputs
            if self.fails:
                raise RuntimeError("driver says no")
            outputs = inner.infer_impl(feed)
            for name, value in outputs.items():
                if name.startswith("kv."):
                    feed[name.removesuffix(".next")][...] = value
            return {name: SimpleNamespace(numpy=lambda v=v: v) for name, v in outputs.items()}

        inner.infer = infer
        return inner

    def explain(self, error: Exception) -> BackendError:
        return BackendError(f"the target plan failed: {error}")


@pytest.fixture
def on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.check.engine, "on_device", lambda array, _dtype, _memory: array)


def engines(plan: StandInPlan) -> tuple[OnnxEngine, PlanEngine]:
    bundle = tiny_bundle()
    ours = OnnxEngine(onnx_runner(bundle.model_path(TARGET), 1), bundle.target)
    return ours, PlanEngine(plan)  # type: ignore[arg-type]


PROMPT = [5, 9, 200, 31, 77, 8, 8, 120]


@pytest.mark.usefixtures("on_host")
def test_a_plan_reads_prompts_and_steps_at_the_profiles_made_for_them() -> None:
    plan = StandInPlan(tiny_bundle())
    with without_chatter():
        ours, theirs = engines(plan)
        answers = compare_answers(ours, theirs, PROMPT)
        theirs.close()
        ours.close()
    assert answers == Answers(ANSWER_TOKENS, ANSWER_TOKENS, None, passed=True)
    names = [plan.facts.profiles[index].name for index in plan.asked]
    assert names == ["prompt", "step"], "one runner each, used again"


@pytest.mark.usefixtures("on_host")
def test_another_models_answer_is_not_taken_for_rounding() -> None:
    """G12: gibberish on one GPU family."""
    plan = StandInPlan(tiny_bundle(), model=tiny_bundle(family="qwen3"))
    plan.manifest = replace(tiny_bundle(family="qwen3").target, precision="fp32")
    with without_chatter():
        ours, theirs = engines(plan)
        answers = compare_answers(ours, theirs, PROMPT)
        theirs.close()
        ours.close()
    assert not answers.passed
    assert answers.num_equal < 8
    assert answers.margin is not None
    assert answers.margin > 2 * sum(tolerance_for(tiny_bundle().target))


@pytest.mark.usefixtures("on_host")
def test_a_plan_that_fails_says_so_in_its_own_words() -> None:
    plan = StandInPlan(tiny_bundle())
    plan.fails = True
    with without_chatter():
        engine = PlanEngine(plan)  # type: ignore[arg-type]
        with pytest.raises(BackendError, match="the target plan failed: driver says no"):
            Text(engine).read(PROMPT)
        engine.close()


@pytest.mark.usefixtures("on_host")
def test_a_call_that_no_profile_holds_is_named() -> None:
    plan = StandInPlan(tiny_bundle())
    plan.facts.profiles = plan.facts.profiles[:1]
    engine = PlanEngine(plan)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match=r"no profile for \{'batch': 1, 'tokens': 16"):
        Text(engine).read(PROMPT)
    engine.close()


SOUND = CallParity("step", 1e-3, True, None)
WRONG = CallParity("verify", 0.7, False, "logits differs by 0.7")


def test_the_verdict_names_the_first_thing_that_is_wrong() -> None:
    equal, parted = Answers(64, 64, None, True), Answers(64, 3, 1.5, False)
    assert judge({TARGET: (SOUND,)}, equal, ()).passed
    found = judge({TARGET: (SOUND, WRONG), DRAFT: (WRONG,)}, parted, ("a note",))
    assert (found.passed, found.notes) == (False, ("a note",))
    assert found.verdict == "the plan is not its graph: target verify: logits differs by 0.7"
    assert "part after 3 of 64 tokens" in judge({TARGET: (SOUND,)}, parted, ()).verdict


def test_people_and_programs_are_told_all_of_it() -> None:
    parity = judge({TARGET: (SOUND, WRONG)}, Answers(64, 3, 1.5, False), ("a note",))
    fidelity = Fidelity(4, 99, 0.1, 1.0, 0.0, None)
    check = EngineCheck(True, "95% must agree", "plan", "fp16", fidelity)
    result = Verification(False, parity.verdict, {TARGET: check}, parity, parity.notes)
    printed = text(result)
    for words in (
        "note: a note\n",
        "target: fp16 plan against the fp32 checkpoint, 4 prompts, 99 positions\n",
        "target step against its graph: largest difference 0.001\n",
        "target verify against its graph: largest difference 0.7, logits differs by 0.7\n",
        "greedy answer against the graph's: 3 of 64 tokens equal\n",
        "FAILED: the plan is not its graph: target verify: logits differs by 0.7\n",
    ):
        assert words in printed
    facts = json.loads(json.dumps(encode(result)))
    assert facts["parity"]["calls"]["target"][1]["reason"] == "logits differs by 0.7"


@pytest.mark.gpu
@pytest.mark.rtx
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_real_plans_are_their_graphs(precision: str) -> None:
    from tests.helpers.compiled_bundle import compiled_bundle

    found = compare_plans(compiled_bundle(precision), lambda *_: None)
    assert found.passed, found.verdict
    assert set(found.calls) == {TARGET, DRAFT}
    assert found.notes == ()
