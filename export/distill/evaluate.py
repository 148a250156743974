"""Acceptance on an evaluation file: the target's greedy answers, guessed by the draft.

For the first turn of every question the target writes NUM_TOKENS tokens; a round is NUM_DRAFT
guesses and one token of the target. Tokens a round = answer tokens / rounds, over all prompts of a
category. Exact for greedy decoding: while guesses are accepted, the draft has read the very tokens
that the answer holds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from export.distill import shards
from export.distill.chat import Frame
from export.distill.corpus import Sample
from export.distill.generate.generator import Done, Generator, Job
from export.distill.generate.noise import GumbelNoise
from export.distill.llama import Llama
from export.distill.measure import num_rounds, ranks
from export.distill.prompts import ALL, Question

NUM_DRAFT = 4
NUM_TOKENS = 64
NUM_ROWS = 64


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Figures of one category, or of all. Tokens a round with K = NUM_DRAFT."""

    num_prompts: int
    num_positions: int
    alpha: float  # share of positions where the draft's first candidate is the target's token
    model: float  # tokens a round: the draft alone
    lookup: float  # the runtime's n-gram lookup alone
    both: float  # lookup in front where it promises more, else the draft


def prefix_of(path: Path) -> str:
    """The shard with the target's answers to a file, by the file's content."""
    return f"answers-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def answer(
    target: Llama,
    frame: Frame,
    questions: Sequence[Question],
    report: Callable[[float], None] = lambda _: None,
) -> list[Sample]:
    """The target's greedy answers, in the order of the questions. A prompt too long for the
    target's positions is answered by nothing."""
    prompts = [frame.encode(frame.before + each.turns[0] + frame.after) for each in questions]
    longest = target.spec.max_position - NUM_TOKENS
    jobs = [
        Job(prompt, NUM_TOKENS, 0.0, number)
        for number, prompt in enumerate(prompts)
        if len(prompt) <= longest
    ]
    left = list(jobs)
    generator = Generator(
        target,
        num_rows=min(NUM_ROWS, max(1, len(jobs))),
        max_len=max((len(job.prompt) for job in jobs), default=0) + NUM_TOKENS,
        end_ids=frame.end_ids,
        noise=GumbelNoise(target.spec.vocab_size, NUM_ROWS, 0, str(target.device)),
        keep_states=False,
    )
    answers: dict[object, list[int]] = {}

    def keep(done: Done) -> None:
        answers[done.job.tag] = done.answer
        report(len(answers) / len(jobs))

    for done in generator.run(lambda: left.pop() if left else None):
        keep(done)
    return [
        Sample(np.array([*prompt, *answers.get(number, [])], np.int64), len(prompt), 0.0)
        for number, prompt in enumerate(prompts)
    ]


def answers_of(
    folder: Path, path: Path, questions: Sequence[Question], vocab_size: int
) -> list[Sample] | None:
    """Answers that an earlier run has stored, or None."""
    names = shards.names(folder, prefix_of(path))
    samples = list(shards.read(folder, names, vocab_size))
    return samples if len(samples) == len(questions) else None


def evaluate(
    draft: Llama,
    ids: npt.NDArray[np.int64],
    questions: Sequence[Question],
    answers: Sequence[Sample],
) -> dict[str, Acceptance]:
    """Figures by category in the file's order, and of ALL; unanswered questions left out."""
    from runtime.spec.replay import LookupReplay

    chosen = [
        (question.category, sample)
        for question, sample in zip(questions, answers, strict=True)
        if sample.answer_start < len(sample)
    ]
    agrees = [found == 0 for found in ranks(draft, [sample for _, sample in chosen], ids)]
    tallies: dict[str, list[tuple[int, int, int, int, int]]] = {}
    # Of K tokens, whatever they cost to verify: these are lengths, not speeds (``LookupReplay``).
    alone, in_front = LookupReplay(NUM_DRAFT), LookupReplay(NUM_DRAFT)
    for (category, sample), right in zip(chosen, agrees, strict=True):
        text = sample.ids.tolist()
        prompt, answer = text[: sample.answer_start], text[sample.answer_start :]
        tally = (
            len(right),
            int(right.sum()),
            num_rounds(right, NUM_DRAFT),
            alone.num_rounds(prompt, answer),
            in_front.num_rounds(prompt, answer, right.tolist()),
        )
        for name in (category, ALL):
            tallies.setdefault(name, []).append(tally)
    figures = {}
    for name in [*(each for each in tallies if each != ALL), *([ALL] if chosen else [])]:
        tokens, agreed, model, lookup, both = (
            sum(part) for part in zip(*tallies[name], strict=True)
        )
        figures[name] = Acceptance(
            len(tallies[name]), tokens, agreed / tokens, tokens / model, tokens / lookup,
            tokens / both,
        )  # fmt: skip
    return figures
