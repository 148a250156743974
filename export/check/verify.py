"""Verify a bundle: the same text through its target engine and through its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engines.bundle import Bundle, open_bundle
from engines.errors import BackendError, CheckpointError
from engines.manifest import TARGET
from export.check.fidelity import Divergence, Logits, compare
from export.check.reference import load_reference
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
MIN_INT8_AGREEMENT = 0.80
MAX_INT8_KL = 0.1
"""8-bit blocks of 64: 95 % and 7e-3 nats on SmolLM2-135M. A wrong graph is far beyond either."""

Progress = Callable[[str, int, int], None]
Score = Callable[[Path, str, list[int]], Logits]


@dataclass(frozen=True, slots=True)
class Verification:
    """``Fidelity`` of an engine, and whether it is good enough for its precision."""

    passed: bool
    verdict: str
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
    progress("loading the checkpoint", 0, 1)
    reference = load_reference(checkpoint)
    progress("loading the checkpoint", 1, 1)
    score = score or _default_score()
    expected, found, starts = [], [], []
    for number, prompt in enumerate(_prompt_ids(bundle)):
        progress("comparing prompts", number, len(PROMPTS))
        room = bundle.manifest.limits.max_len - 1
        start = prompt[: max(1, room - ANSWER_TOKENS)]
        text = (start + reference.continue_greedily(start, ANSWER_TOKENS))[:room]
        expected.append(_finite(reference.logits(text), checkpoint.name))
        found.append(_finite(score(bundle_path, TARGET, text), f"the engine in {bundle_path}"))
        starts.append(len(start))
    progress("comparing prompts", len(PROMPTS), len(PROMPTS))
    figures = compare(expected, found, starts)
    precision = bundle.target.precision
    if precision == "fp32":
        passed = figures.max_abs_difference <= MAX_FP32_DIFFERENCE
        verdict = f"logits may differ by {MAX_FP32_DIFFERENCE:g}"
    else:
        passed = figures.top1_agreement >= MIN_INT8_AGREEMENT and figures.mean_kl <= MAX_INT8_KL
        verdict = f"{MIN_INT8_AGREEMENT:.0%} must agree, with at most {MAX_INT8_KL:g} nats"
    return Verification(
        passed=passed,
        verdict=verdict,
        precision=precision,
        num_prompts=figures.num_prompts,
        num_positions=figures.num_positions,
        max_abs_difference=figures.max_abs_difference,
        top1_agreement=figures.top1_agreement,
        mean_kl=figures.mean_kl,
        first_divergence=figures.first_divergence,
    )


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


def _default_score() -> Score:
    from runtime.llm import score

    run: Score = score
    return run
