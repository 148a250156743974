"""What quantised weights cost: a built bundle against its twin with float32 weights.

The twin answers the prompts of ``export.check.verify`` greedily, then both read the same texts,
and their laws are compared along the answers. No torch: ONNX Runtime runs both. (What a graph does
otherwise than its checkpoint is ``python -m export verify``'s to find.)
"""

from __future__ import annotations

from collections.abc import Callable

from engines.bundle import Bundle
from engines.errors import SsdError
from engines.fidelity import WeightFidelity
from export.build.estimate import free_disk, free_memory
from export.build.plan import in_words
from export.build.progress import Reporter
from export.check.fidelity import Logits, compare
from export.check.fidelity import in_words as fidelity_in_words
from export.check.scoring import scoring
from export.check.verify import Answered, finite, prompt_ids

ANSWER_TOKENS = 48
MOST_PARAMETERS = 600 * 10**6
"""Of target and draft together. Building the twin and reading with it then takes about a minute on
two cores; beyond, a build that takes minutes itself would spend as long again on figures."""
FLOAT_BYTES = 4


def measure_rounding(
    bundle: Bundle, write_twin: Callable[[], Bundle], reporter: Reporter
) -> dict[str, WeightFidelity]:
    """Figures by role; {} with a line that says why where they cannot be had, or not soon.

    ``write_twin`` builds the same engines with float32 weights.
    """
    why = _why_not(bundle)
    if why is None:
        try:
            return _measure(bundle, write_twin, reporter)
        except SsdError as error:  # a bundle is not wrong because figures cannot be had
            why = str(error)
    reporter.say(f"fidelity was not measured: {why}")
    return {}


def _why_not(bundle: Bundle) -> str | None:
    """Why measuring would take too much, in half a sentence; None when it is worth it."""
    num_parameters = sum(engine.model.num_parameters for engine in bundle.engines)
    twin_bytes = FLOAT_BYTES * num_parameters
    compare_with = "python -m export verify BUNDLE measures it"
    if num_parameters > MOST_PARAMETERS:
        return f"a float32 twin of {in_words(twin_bytes)} would take minutes; {compare_with}"
    free = free_disk(bundle.path)
    if twin_bytes > free:
        return f"a float32 twin takes {in_words(twin_bytes)}, the disk has {in_words(free)} free"
    memory = free_memory()
    if memory is not None and 2 * twin_bytes > memory:
        return f"a float32 twin takes {in_words(2 * twin_bytes)} of memory, {in_words(memory)} free"
    return None


def _measure(
    bundle: Bundle, write_twin: Callable[[], Bundle], reporter: Reporter
) -> dict[str, WeightFidelity]:
    twin = write_twin()
    texts = _answers(twin, prompt_ids(bundle), reporter)
    starts = [text.answer_start for text in texts]
    measured = {}
    for engine in bundle.engines:
        role = engine.role
        # A draft may lack ids of the target; both sides read another one then.
        known = [[t if t < engine.model.vocab_size else 0 for t in text.ids] for text in texts]
        exact, rounded = (_logits(each, role, known, reporter) for each in (twin, bundle))
        figures = compare(exact, rounded, starts)
        # Equal laws may come out a rounding error below 0.
        kl = max(0.0, figures.mean_kl)
        measured[role] = WeightFidelity(figures.num_positions, figures.top1_agreement, kl)
        reporter.say(f"{role}: {fidelity_in_words(measured[role])}")
    return measured


def _answers(twin: Bundle, prompts: list[list[int]], reporter: Reporter) -> list[Answered]:
    """Each prompt with the twin's greedy answer, within the bundle's length."""
    from runtime.llm import LLM

    room = twin.manifest.limits.max_len - 1
    found = []
    with LLM.open(twin.path, mode="ar", max_batch=1) as llm:
        for number, ids in enumerate(prompts):
            reporter.step("fidelity: answering", number, len(prompts))
            start = ids[: max(1, room - ANSWER_TOKENS)]
            answer = llm.generate(start, max_tokens=max(1, min(ANSWER_TOKENS, room - len(start))))
            found.append(Answered([*start, *answer.token_ids], len(start)))
    reporter.step("fidelity: answering", len(prompts), len(prompts))
    return found


def _logits(bundle: Bundle, role: str, texts: list[list[int]], reporter: Reporter) -> list[Logits]:
    with scoring(bundle, role) as engine:
        found = []
        for number, ids in enumerate(texts):
            reporter.step(f"fidelity: reading as the {role}", number, len(texts))
            logits = engine.score(bundle.path, role, ids)
            found.append(finite(logits, f"the {role} in {bundle.manifest.precision}"))
        return found
