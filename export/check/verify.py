"""Verify a bundle: the same text through its target engine and through its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.bundle import Bundle, open_bundle
from engines.errors import BackendError, CheckpointError
from engines.manifest import TARGET
from export.check.fidelity import Divergence, Fidelity, Logits, compare
from export.check.parity import BundleParity, compare_plans
from export.check.reference import load_reference
from export.check.scoring import Score, Scoring, scoring
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.resolve import resolve

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
class Verification:
    """``Fidelity`` of an engine, and whether it is good enough for its precision.

    ``engine`` is what ran: an "engine" of ONNX Runtime, a compiled "plan", or the "graph" of a plan
    that cannot run here. ``notes`` say what could not be checked. ``parity`` compares plans with
    their graphs, where both can run.
    """

    passed: bool
    verdict: str
    engine: str
    notes: tuple[str, ...]
    parity: BundleParity | None
    precision: str
    num_prompts: int
    num_positions: int
    max_abs_difference: float
    top1_agreement: float
    mean_kl: float
    first_divergence: Divergence | None


def verify(
    bundle_path: Path,
    checkpoint: Checkpoint,
    progress: Progress | None = None,
    score: Score | None = None,
) -> Verification:
    """Compare on the default prompts and the checkpoint's greedy answers to them.

    ``score(bundle, role, ids)`` gives an engine's logits [tokens, V]; the default runs the
    bundle. Raises MissingDependencyError, CheckpointError, BundleError, BackendError.
    """
    progress = progress or (lambda _what, _done, _total: None)
    bundle = open_bundle(bundle_path)
    chosen = nullcontext(Scoring("engine", score)) if score else scoring(bundle)
    with chosen as running:
        figures = _compare(bundle, checkpoint, running.score, progress)
    parity = compare_plans(bundle, progress) if running.engine == "plan" else None
    passed, verdict = _judge(figures, bundle.target.precision)
    if parity is not None and not parity.passed:
        passed, verdict = False, parity.verdict
    return Verification(
        passed=passed,
        verdict=verdict,
        engine=running.engine,
        notes=running.notes + (parity.notes if parity else ()),
        parity=parity,
        precision=bundle.target.precision,
        num_prompts=figures.num_prompts,
        num_positions=figures.num_positions,
        max_abs_difference=figures.max_abs_difference,
        top1_agreement=figures.top1_agreement,
        mean_kl=figures.mean_kl,
        first_divergence=figures.first_divergence,
    )


def _compare(bundle: Bundle, checkpoint: Checkpoint, score: Score, progress: Progress) -> Fidelity:
    progress("loading the checkpoint", 0, 1)
    reference = load_reference(checkpoint)
    progress("loading the checkpoint", 1, 1)
    expected, found, starts = [], [], []
    for number, prompt in enumerate(_prompt_ids(bundle)):
        progress("comparing prompts", number, len(PROMPTS))
        room = bundle.manifest.limits.max_len - 1
        start = prompt[: max(1, room - ANSWER_TOKENS)]
        text = (start + reference.continue_greedily(start, ANSWER_TOKENS))[:room]
        expected.append(_finite(reference.logits(text), checkpoint.name))
        found.append(_finite(score(bundle.path, TARGET, text), f"the engine in {bundle.path}"))
        starts.append(len(start))
    progress("comparing prompts", len(PROMPTS), len(PROMPTS))
    return compare(expected, found, starts)


def _judge(figures: Fidelity, precision: str) -> tuple[bool, str]:
    """Whether the figures will do, and what was asked of them."""
    if precision == "fp32":
        passed = figures.max_abs_difference <= MAX_FP32_DIFFERENCE
        return passed, f"logits may differ by {MAX_FP32_DIFFERENCE:g}"
    agreement, nats = FIDELITY[precision]
    passed = figures.top1_agreement >= agreement and figures.mean_kl <= nats
    return passed, f"{agreement:.0%} must agree, with at most {nats:g} nats"


def verify_or_refuse(bundle_path: Path, checkpoint: Checkpoint) -> Verification:
    """``verify``; BackendError when the engine is wrong."""
    result = verify(bundle_path, checkpoint)
    if not result.passed:
        raise BackendError(
            f"the built engine does not compute what {checkpoint.name} does (largest logit "
            f"difference {result.max_abs_difference:.3g}, same token {result.top1_agreement:.1%}, "
            f"KL {result.mean_kl:.3g} nats; {result.verdict})"
        )
    return result


def find_checkpoint(bundle: Bundle, name: str | None) -> Checkpoint:
    """The checkpoint that the target was built from: ``name``, or as it was named then.

    CheckpointError when it is not there, or is another one.
    """
    source = bundle.target.source
    try:
        checkpoint = open_checkpoint(resolve(name or source.name))
    except CheckpointError as error:
        if name is not None:
            raise
        raise CheckpointError(
            f"the checkpoint of {bundle.path} is not found under its name then: {error}; "
            "name it with --target"
        ) from None
    if checkpoint.fingerprint() != source.fingerprint:
        raise CheckpointError(
            f"{name or source.name} is not the checkpoint that {bundle.path} was built from "
            f"(fingerprint {checkpoint.fingerprint()[:12]}, expected {source.fingerprint[:12]}); "
            "name the right one with --target"
        )
    return checkpoint


def _finite(logits: Logits, whose: str) -> Logits:
    if not np.isfinite(logits).all():
        raise BackendError(f"{whose} gives logits that are NaN or infinite")
    return logits


def _prompt_ids(bundle: Bundle) -> list[list[int]]:
    """Token ids of the default prompts, as a chat where the bundle has a template."""
    from runtime.text import ChatTemplate, Tokenizer

    tokenizer = Tokenizer(bundle.tokenizer_path.read_bytes())
    texts = list(PROMPTS)
    if bundle.chat_template_path is not None:
        source = bundle.chat_template_path.read_bytes()
        template = ChatTemplate.from_bytes(source, bundle.manifest.special_tokens)
        texts = [template.render([{"role": "user", "content": text}]) for text in texts]
    return [tokenizer.encode(text) for text in texts]
