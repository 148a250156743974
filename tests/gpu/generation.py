"""The generation part: whole texts by bundles on the GPU, in all modes.

On one engine all modes give the same tokens, to the last one: that is what the coupled rule
promises. The CPU's engine rounds differently, so its greedy tokens are the same up to a near tie:
where a text first differs, the CPU itself finds the GPU's token about as likely as its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from engines.bundle import open_bundle
from engines.errors import MissingDependencyError, SsdError, as_line
from runtime.completion import Completion
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.gpu.parts import Options
from tests.gpu.report import Case, Outcome

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a robot who",
    "def fibonacci(n):",
    "The three laws of thermodynamics say that",
)
LAWS = (
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=7),
    SamplingParams(temperature=1.0, top_k=50, top_p=0.9, seed=8),
)
MODES = ("ar", "sd", "ssd")
MAX_TOKENS, MIN_TOKENS, NUM_LIKELIEST = 48, 8, 5
NEAR_TIE = 0.5
"""Nats between two tokens that a 16-bit engine may take for one another."""
CPU_BACKEND = "onnxruntime"

Open = Callable[..., AbstractContextManager[LLM]]


@dataclass(frozen=True, slots=True)
class Texts:
    """What a bundle generated in one mode: tokens by law and prompt."""

    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    tokens_s: float
    acceptance_length: float
    hit_rate: float | None


def run(options: Options, open_llm: Open = LLM.open) -> list[Case]:
    if not options.bundles:
        return [Case("bundle", Outcome.SKIPPED, "no bundle: `make demo`, or --bundle DIR")]
    cases = []
    for path in options.bundles:
        found: dict[str, Texts] = {}
        cases += [_in_mode(path, mode, options.device, found, open_llm) for mode in MODES]
        if "ar" in found:
            cases.append(_as_on_cpu(path, options.bundles, found["ar"].tokens[0], open_llm))
    return cases


def differences(found: Texts, expected: Texts) -> list[str]:
    """A line for each text that is not as expected."""
    return [
        f"law {law}, prompt {prompt}: token {_first_difference(one, other)} differs"
        for law, (ones, others) in enumerate(zip(found.tokens, expected.tokens, strict=True))
        for prompt, (one, other) in enumerate(zip(ones, others, strict=True))
        if one != other
    ]


def disagreement(found: Sequence[int], expected: Completion) -> str | None:
    """Why greedy tokens cannot be those of an engine that but rounds differently; None if they can.

    ``expected`` has the log-probabilities of its likeliest tokens.
    """
    tokens = expected.token_ids
    if tuple(found) == tokens:
        return None
    place = _first_difference(found, tokens)
    if place == min(len(found), len(tokens)):
        return f"one text ends after {place} tokens, the other does not"
    assert expected.logprobs is not None
    known = expected.logprobs[place]
    likeliest = dict(zip(known.top_ids.tolist(), known.top_logprobs.tolist(), strict=True))
    gap = known.logprob - likeliest.get(found[place], float("-inf"))
    if gap <= NEAR_TIE:
        return None
    return f"token {place} is {found[place]}, {gap:.2f} nats below the CPU's {tokens[place]}"


def _in_mode(path: Path, mode: str, device: str, found: dict[str, Texts], open_llm: Open) -> Case:
    name, started = f"{path.name}: {mode}", monotonic()
    try:
        with open_llm(path, device=device, mode=mode) as llm:
            texts = _generate(llm)
    except MissingDependencyError as error:
        return Case(name, Outcome.SKIPPED, as_line(str(error)))
    except SsdError as error:
        return Case(name, Outcome.FAILED, as_line(str(error)), monotonic() - started)
    found[mode] = texts
    problems = differences(texts, found["ar"]) if "ar" in found else ["plain decoding failed"]
    return Case(
        name,
        Outcome.FAILED if problems else Outcome.PASSED,
        "; ".join(problems),
        monotonic() - started,
        {
            "tokens_s": texts.tokens_s,
            "acceptance_length": texts.acceptance_length,
            "hit_rate": texts.hit_rate,
        },
    )


def _generate(llm: LLM) -> Texts:
    prompts = [llm.encode(each) for each in PROMPTS]
    by_law = [
        llm.generate_batch(prompts, law, max_tokens=MAX_TOKENS, min_tokens=MIN_TOKENS)
        for law in LAWS
    ]
    stats = [each.stats for texts in by_law for each in texts]
    rates = [each.hit_rate for each in stats if each.hit_rate is not None]
    seconds = sum(each.decode_s for each in stats)
    return Texts(
        tokens=tuple(tuple(each.token_ids for each in texts) for texts in by_law),
        tokens_s=sum(each.num_tokens for each in stats) / seconds if seconds else 0.0,
        acceptance_length=sum(each.acceptance_length for each in stats) / len(stats),
        hit_rate=sum(rates) / len(rates) if rates else None,
    )


def _as_on_cpu(
    path: Path, bundles: Sequence[Path], found: Sequence[Sequence[int]], open_llm: Open
) -> Case:
    """Greedy tokens against those of a bundle that the CPU can run: this one, or the first."""
    name, started = f"{path.name}: as on the CPU", monotonic()
    on_cpu = [each for each in (path, *bundles) if _backend(each) == CPU_BACKEND]
    if not on_cpu:
        return Case(name, Outcome.SKIPPED, f"no bundle for {CPU_BACKEND} was given with --bundle")
    try:
        with open_llm(on_cpu[0], device="cpu", mode="ar") as llm:
            expected = [_on_cpu(llm, prompt) for prompt in PROMPTS]
    except MissingDependencyError as error:
        return Case(name, Outcome.SKIPPED, as_line(str(error)))
    except SsdError as error:
        return Case(name, Outcome.FAILED, as_line(str(error)), monotonic() - started)
    problems = [
        f"prompt {prompt}: {problem}"
        for prompt, (one, other) in enumerate(zip(found, expected, strict=True))
        if (problem := disagreement(one, other)) is not None
    ]
    equal = sum(tuple(one) == other.token_ids for one, other in zip(found, expected, strict=True))
    return Case(
        name,
        Outcome.FAILED if problems else Outcome.PASSED,
        "; ".join(problems),
        monotonic() - started,
        {"equal_texts": equal, "texts": len(expected)},
    )


def _on_cpu(llm: LLM, prompt: str) -> Completion:
    options: Any = {"max_tokens": MAX_TOKENS, "min_tokens": MIN_TOKENS, "logprobs": NUM_LIKELIEST}
    return llm.generate(llm.encode(prompt), SamplingParams(), **options)


def _backend(path: Path) -> str | None:
    try:
        return open_bundle(path).manifest.backend
    except SsdError:
        return None


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """The first place that differs; the length of the shorter where it begins the longer."""
    pairs = enumerate(zip(one, other, strict=False))
    shorter = min(len(one), len(other))
    return next((place for place, (a, b) in pairs if a != b), shorter)
