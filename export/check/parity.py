"""A compiled plan against the ONNX file it came from, by polygraphy's comparator.

Of every kind of call, logits and caches are compared within a tolerance, and what our plugin
layers chose with the numpy reference on the plan's own logits; a greedy answer token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.bundle import Bundle
from engines.manifest import DRAFT, TARGET, EngineManifest
from engines.tensors import DType
from export.bench.calls import TimedCall, timed_calls
from export.bench.data_loader import NUM_IDS, feeds
from export.check.engine import Border, Engine, OnnxEngine, PlanEngine, Text
from export.check.runners import (
    host_type,
    onnx_runner,
    open_plan,
    usable_cores,
    without_chatter,
)
from export.check.scoring import why_no_graph
from export.graph.precision import precision_for
from plugins.registry import OPERATORS

TOLERANCES = {DType.FLOAT32: (1e-3, 1e-3), DType.FLOAT16: (5e-2, 5e-2)}
"""(atol, rtol) by what the engine computes in; a number may be off by either. Both sides have the
same weights, whatever their precision, and add up in another order."""
PROMPT_TOKENS, ANSWER_TOKENS = 16, 64
CHOICES = ("accepted", "next", "sample")
"""Outputs of our layers: whole numbers, right or wrong."""

Progress = Callable[[str, int, int], None]
RunnerFor = Callable[[int], Any]
"""A polygraphy runner of the plan at one profile."""


@dataclass(frozen=True, slots=True)
class CallParity:
    """One kind of call: the largest difference of an output, and whether all is as it should be."""

    kind: str
    max_abs_difference: float
    passed: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Answers:
    """Greedy answers side by side. ``margin`` is how sure the ONNX file was where they part."""

    num_tokens: int
    num_equal: int
    margin: float | None
    passed: bool


@dataclass(frozen=True, slots=True)
class BundleParity:
    """Each engine's calls by role, the target's greedy answer, and what could not be compared."""

    passed: bool
    verdict: str
    calls: dict[str, tuple[CallParity, ...]]
    answers: Answers | None
    notes: tuple[str, ...]


def compare_plans(bundle: Bundle, progress: Progress) -> BundleParity:
    """The plans of ``bundle`` against their graphs on ONNX Runtime; needs the GPU.

    Raises BackendError when a plan fails; MissingDependencyError.
    """
    calls: dict[str, tuple[CallParity, ...]] = {}
    answers, notes = None, []
    with without_chatter():
        for manifest in bundle.engines:
            if why := why_no_graph(bundle, manifest):
                notes.append(f"the {manifest.role} plan was not compared with its graph: {why}")
                continue
            plan = open_plan(bundle, manifest.role)
            reference = onnx_runner(bundle.model_path(manifest.role), len(usable_cores()))
            calls[manifest.role] = compare_calls(
                reference, plan.runner, manifest, _vocab_map(bundle, manifest), progress
            )
            if manifest.role == TARGET:
                with (
                    closing(OnnxEngine(reference, manifest)) as ours,
                    closing(PlanEngine(plan)) as theirs,
                ):
                    answers = compare_answers(ours, theirs, _prompt(manifest))
    return judge(calls, answers, tuple(notes))


def judge(
    calls: dict[str, tuple[CallParity, ...]], answers: Answers | None, notes: tuple[str, ...]
) -> BundleParity:
    """All of it in one verdict, which names the first thing that is wrong."""
    wrong = [
        f"{role} {call.kind}: {call.reason}"
        for role, found in calls.items()
        for call in found
        if not call.passed
    ]
    if answers is not None and not answers.passed:
        wrong.append(
            f"greedy answers part after {answers.num_equal} of {answers.num_tokens} tokens, where "
            f"the graph is sure by {answers.margin:.3g}"
        )
    verdict = f"the plan is not its graph: {wrong[0]}" if wrong else "the plans are their graphs"
    return BundleParity(not wrong, verdict, calls, answers, notes)


def _vocab_map(bundle: Bundle, manifest: EngineManifest) -> npt.NDArray[np.int64] | None:
    path = bundle.vocab_map_path() if manifest.role == DRAFT else None
    return None if path is None else np.load(path, allow_pickle=False).astype(np.int64)


def _prompt(manifest: EngineManifest) -> list[int]:
    """A prompt for the greedy answers: any ids will do, both engines read the same."""
    length = max(1, min(PROMPT_TOKENS, manifest.limits.max_len - ANSWER_TOKENS))
    ids: list[int] = np.random.default_rng(0).integers(0, NUM_IDS, length).tolist()
    return ids


def tolerance_for(manifest: EngineManifest) -> tuple[float, float]:
    """(atol, rtol) of an engine. KeyError for bfloat16, which ONNX Runtime does not run."""
    return TOLERANCES[precision_for(manifest.backend, manifest.precision).activation]


def compare_calls(
    reference: Any,
    runner_for: RunnerFor,
    manifest: EngineManifest,
    vocab_map: npt.NDArray[np.int64] | None,
    progress: Progress,
) -> tuple[CallParity, ...]:
    """Every kind of call through both runners, on the same random inputs."""
    calls = timed_calls(manifest, batch=manifest.limits.max_batch, length=None)
    what = f"{manifest.role}: plan against ONNX"
    found = []
    for done, timed in enumerate(calls):
        progress(what, done, len(calls))
        runner = runner_for(timed.profile)
        found.append(_compare_call(reference, runner, manifest, vocab_map, timed))
    progress(what, len(calls), len(calls))
    return tuple(found)


def _compare_call(
    reference: Any,
    runner: Any,
    manifest: EngineManifest,
    vocab_map: npt.NDArray[np.int64] | None,
    timed: TimedCall,
) -> CallParity:
    from polygraphy.comparator import Comparator, IterationResult, SimpleCompareFunc

    metadata = {spec.name: (host_type(spec.dtype), spec.shape) for spec in manifest.inputs}
    feed = feeds(metadata, timed.call)
    results = Comparator.run([reference, runner], data_loader=[feed])
    _, (plans,) = results[1]
    wrong = wrong_choice(feed, dict(plans.items()), vocab_map)

    def without_choices(result: Any) -> Any:
        return IterationResult({n: v for n, v in result.items() if n not in CHOICES})

    numbers = Comparator.postprocess(results, without_choices)
    atol, rtol = tolerance_for(manifest)
    compare = SimpleCompareFunc(atol=atol, rtol=rtol)
    ((outputs,),) = Comparator.compare_accuracy(numbers, compare_func=compare)[0].values()
    differences = {name: float(result.max_absdiff) for name, result in outputs.items()}
    off = [f"{n} differs by {differences[n]:.3g}" for n, result in outputs.items() if not result]
    reason = wrong or next(iter(off), None)
    return CallParity(timed.kind, max(differences.values()), reason is None, reason)


def wrong_choice(
    feed: Border, outputs: Border, vocab_map: npt.NDArray[np.int64] | None
) -> str | None:
    """Which output of an ssd:: layer is not what its reference makes of the same logits."""
    logits = outputs["logits"]
    if "sample" in outputs:
        names: tuple[str, ...] = ("sample",)
        ids_map = np.arange(logits.shape[-1]) if vocab_map is None else vocab_map
        expected = OPERATORS["Sample"].reference(logits, ids_map)
    else:
        names = ("accepted", "next")
        drafts = np.take_along_axis(feed["tokens"], feed["logit_rows"], axis=1)[:, 1:]
        expected = OPERATORS["Verify"].reference(logits, drafts, feed["num_draft"])
    for name, value in zip(names, expected, strict=True):
        if not np.array_equal(outputs[name], value):
            return f"{name} is {outputs[name].tolist()}, its own logits say {value.tolist()}"
    return None


def compare_answers(reference: Engine, plan: Engine, prompt: Sequence[int]) -> Answers:
    """The greedy answers of two target engines to one prompt.

    They may part where the reference was not sure: within the tolerance of a logit.
    """
    limits = reference.manifest.limits
    num_tokens = max(1, min(ANSWER_TOKENS, limits.max_len - len(prompt)))
    ours, theirs = (
        text.continue_greedily(num_tokens, text.read(prompt))
        for text in (Text(reference), Text(plan))
    )
    equal = [left.token == right.token for left, right in zip(ours, theirs, strict=True)]
    if all(equal):
        return Answers(num_tokens, num_tokens, None, passed=True)
    parting = equal.index(False)
    margin = ours[parting].margin
    atol, rtol = tolerance_for(reference.manifest)
    return Answers(num_tokens, parting, margin, passed=margin <= 2 * (atol + rtol))
