"""Verify a bundle: the same text through each of its engines and through its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.bundle import Bundle, open_bundle
from engines.errors import BackendError, UsageError
from engines.manifest import DRAFT, TARGET
from export.check.fidelity import Fidelity, Logits, compare
from export.check.parity import BundleParity, compare_plans
from export.check.reference import (
    PURPOSE,
    Reference,
    load_draft_reference,
    load_reference,
    require_transformers,
)
from export.check.runners import manifest_of, require_polygraphy
from export.check.scoring import Score, Scoring, scoring
from export.checkpoint.api import Checkpoint
from export.packages import require

PROMPTS = (
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "Translate into French: The train to Lyon leaves at half past six.",
    "A shop sells 3 apples for 2 dollars. How much do 12 apples cost?",
)
ANSWER_TOKENS = 24

MAX_FP32_DIFFERENCE = 5e-3
"""Sums in another order: 1.4e-4 on SmolLM2-135M, more on wider models."""
FIDELITY = {"fp16": (0.95, 0.01), "bf16": (0.90, 0.05), "int8": (0.80, 0.1), "int4": (0.30, 3.0)}
"""Least share of equal choices, most nats. 8-bit blocks of 64: 95 % and 7e-3 nats on SmolLM2-135M.
A wrong graph is far beyond any of them."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """How far an engine is from its checkpoint, and whether that will do for its precision.

    ``engine`` is what ran: an "engine" of ONNX Runtime, a compiled "plan", or the "graph" of a plan
    that cannot run here. ``verdict`` says what was asked of the figures.
    """

    passed: bool
    verdict: str
    engine: str
    precision: str
    fidelity: Fidelity


@dataclass(frozen=True, slots=True)
class Verification:
    """The engines by role, in one verdict. ``parity`` compares plans with their graphs, where both
    can run; ``notes`` say what could not be checked.
    """

    passed: bool
    verdict: str
    engines: dict[str, EngineCheck]
    parity: BundleParity | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A prompt with the target's greedy answer, which begins at ``answer_start``."""

    ids: list[int]
    answer_start: int


def verify(
    bundle_path: Path,
    target: Checkpoint,
    *,
    draft: Checkpoint | None = None,
    progress: Progress | None = None,
    score: Score | None = None,
) -> Verification:
    """Compare on the default prompts and the target's greedy answers to them.

    A draft engine is compared where its checkpoint ``draft`` is given. ``score(bundle, role,
    ids)`` gives an engine's logits [tokens, V]; the default runs the bundle. Raises BundleError,
    MissingDependencyError, CheckpointError, BackendError.
    """
    progress = progress or (lambda _what, _done, _total: None)
    bundle = open_bundle(bundle_path)
    require_packages(bundle)
    prompts = prompt_ids(bundle)

    def running(role: str) -> AbstractContextManager[Scoring]:
        return nullcontext(Scoring("engine", score)) if score else scoring(bundle, role)

    with running(TARGET) as engine:
        reference = _load(TARGET, lambda: load_reference(target), progress)
        texts = [_answer(reference, ids, bundle.manifest.limits.max_len - 1) for ids in prompts]
        engines = {TARGET: _check(bundle, TARGET, target, reference, engine, texts, progress)}
        notes = engine.notes
    if draft is not None:
        with running(DRAFT) as engine:
            reference = _load(DRAFT, lambda: load_draft_reference(draft, target), progress)
            engines[DRAFT] = _check(bundle, DRAFT, draft, reference, engine, texts, progress)
            notes += engine.notes
    parity = compare_plans(bundle, progress) if engines[TARGET].engine == "plan" else None
    return _conclude(engines, parity, notes)


def require_packages(bundle: Bundle) -> None:
    """MissingDependencyError for what ``verify`` would miss: now, not after minutes of work."""
    require_transformers()
    if bundle.target.plan is not None:
        require_polygraphy(PURPOSE)
    needed = ["onnxruntime", "tokenizers"]
    if bundle.chat_template_path is not None:
        needed.append("jinja2")
    for package in needed:
        require(package, package, "cpu", PURPOSE)


def _load(role: str, load: Callable[[], Reference], progress: Progress) -> Reference:
    what = f"loading the {role}'s checkpoint"
    progress(what, 0, 1)
    reference = load()
    progress(what, 1, 1)
    return reference


def _answer(reference: Reference, prompt: list[int], room: int) -> Answered:
    """Within ``room`` tokens, prompt and answer together; a prompt that leaves none is cut."""
    start = prompt[: max(1, room - ANSWER_TOKENS)]
    return Answered((start + reference.continue_greedily(start, ANSWER_TOKENS))[:room], len(start))


def _check(
    bundle: Bundle,
    role: str,
    checkpoint: Checkpoint,
    reference: Reference,
    engine: Scoring,
    texts: Sequence[Answered],
    progress: Progress,
) -> EngineCheck:
    manifest = manifest_of(bundle, role)
    expected, found = [], []
    for number, text in enumerate(texts):
        progress(f"comparing the {role}", number, len(texts))
        # A draft may lack ids of the target. Any other will do, since both sides read it.
        ids = [index if index < manifest.model.vocab_size else 0 for index in text.ids]
        expected.append(finite(reference.logits(ids), checkpoint.name))
        logits = engine.score(bundle.path, role, ids)
        found.append(finite(logits, f"the {role} engine in {bundle.path}"))
    progress(f"comparing the {role}", len(texts), len(texts))
    figures = compare(expected, found, [text.answer_start for text in texts])
    passed, verdict = _judge(figures, manifest.precision)
    return EngineCheck(passed, verdict, engine.engine, manifest.precision, figures)


def _judge(figures: Fidelity, precision: str) -> tuple[bool, str]:
    """Whether the figures will do, and what was asked of them."""
    if precision == "fp32":
        passed = figures.max_abs_difference <= MAX_FP32_DIFFERENCE
        return passed, f"logits may differ by {MAX_FP32_DIFFERENCE:g}"
    agreement, nats = FIDELITY[precision]
    passed = figures.top1_agreement >= agreement and figures.mean_kl <= nats
    return passed, f"{agreement:.0%} must agree, with at most {nats:g} nats"


def _conclude(
    engines: dict[str, EngineCheck], parity: BundleParity | None, notes: tuple[str, ...]
) -> Verification:
    """All of it in one verdict, which names the first thing that is wrong."""
    wrong = [f"{role}: {check.verdict}" for role, check in engines.items() if not check.passed]
    if parity is not None:
        notes += parity.notes
        wrong += [] if parity.passed else [parity.verdict]
    verdict = wrong[0] if wrong else engines[TARGET].verdict
    return Verification(not wrong, verdict, engines, parity, notes)


def verify_or_refuse(
    bundle_path: Path, target: Checkpoint, draft: Checkpoint | None = None
) -> Verification:
    """``verify``; BackendError naming the first engine that is wrong."""
    result = verify(bundle_path, target, draft=draft)
    if result.passed:
        return result
    role = next((role for role, check in result.engines.items() if not check.passed), TARGET)
    figures = result.engines[role].fidelity
    raise BackendError(
        f"the built {role} engine does not compute what its checkpoint does (largest logit "
        f"difference {figures.max_abs_difference:.3g}, same token "
        f"{figures.top1_agreement:.1%}, KL {figures.mean_kl:.3g} nats; {result.verdict})"
    )


def finite(logits: Logits, whose: str) -> Logits:
    """``logits``; BackendError where they are not all finite, which no figure would show."""
    if not np.isfinite(logits).all():
        raise BackendError(f"{whose} gives logits that are NaN or infinite")
    return logits


def prompt_ids(bundle: Bundle) -> list[list[int]]:
    """Token ids of the default prompts, as the runtime encodes them: as a chat where the bundle has
    a template that works, else with the tokens that the tokenizer puts around a text."""
    from runtime.text import ChatTemplate, Tokenizer

    tokenizer = Tokenizer(bundle.tokenizer_path.read_bytes())
    if bundle.chat_template_path is not None:
        source = bundle.chat_template_path.read_bytes()
        # One that fails (it may ask for tools, say) keeps nobody from comparing engines.
        with suppress(UsageError):
            template = ChatTemplate.from_bytes(source, bundle.manifest.special_tokens)
            chats = [template.render([{"role": "user", "content": text}]) for text in PROMPTS]
            return [tokenizer.encode(chat) for chat in chats]
    return [tokenizer.encode(text, add_special_tokens=True) for text in PROMPTS]
