"""The target writes its own training text into shards, with its states beside it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from export.distill import author, shards
from export.distill.author import Author
from export.distill.chat import Frame
from export.distill.corpus import Sample
from export.distill.generate.generator import Done, Generator
from export.distill.generate.noise import GumbelNoise
from export.distill.llama import Llama
from export.distill.stop import Stop
from export.progress import say

PREFIX = "written"
SHARD_SEQUENCES = 128
NUM_ROWS = {"cpu": 128, "cuda": 256}


@dataclass(frozen=True, slots=True)
class PromptCount:
    """What has become of the user's prompts, earlier runs in the folder included."""

    num_prompts: int
    num_answered: int
    num_too_long: int  # no room for an answer in ``max_len`` tokens
    max_len: int

    @property
    def num_not_reached(self) -> int:
        return self.num_prompts - self.num_answered - self.num_too_long

    def __str__(self) -> str:
        parts = [f"answered {self.num_answered:,} of {self.num_prompts:,} prompts"]
        if self.num_too_long:
            room = f"no room for an answer in the {self.max_len:,} tokens of a row"
            parts.append(f"{room}: {self.num_too_long:,}")
        if self.num_not_reached:
            parts.append(f"not reached in the time: {self.num_not_reached:,}")
        return "; ".join(parts)


def seconds_spent(folder: Path) -> float:
    """What has gone into the shards of ``folder`` so far."""
    return sum(shards.notes(folder, name).seconds for name in shards.names(folder, PREFIX))


def unanswered(folder: Path, prompts: Sequence[str]) -> list[str]:
    """Those of ``prompts`` that no shard of ``folder`` answers; a text that stands in ``prompts``
    twice is wanted twice."""
    names = shards.names(folder, PREFIX)
    answers = Counter(each for name in names for each in shards.notes(folder, name).answered)
    left = []
    for text in prompts:
        digest = shards.digest(text)
        if answers[digest]:
            answers[digest] -= 1
        else:
            left.append(text)
    return left


def write_text(
    target: Llama,
    frame: Frame,
    folder: Path,
    *,
    seconds: float,
    seed: int,
    prompts: Sequence[str] = (),
    answer_tokens: int = author.ANSWER_TOKENS,
    greedy_share: float = author.GREEDY_SHARE,
    keep_states: bool,
    stop: Stop,
    report: Callable[[float, int, float], None] = lambda *_: None,
    clock: Callable[[], float] = time.monotonic,
) -> PromptCount:
    """Add shards to ``folder`` until ``seconds`` have gone into it, those of earlier runs included.

    ``prompts`` are answered first, each once, with at most ``answer_tokens``; if any of them was
    left out in the end, a line says so. ``report`` gets the share of the time, the answer tokens
    and their rate a second. Asked to stop, or on an error, it keeps all that has been written.
    """
    spent_s = seconds_spent(folder)
    left = unanswered(folder, prompts)
    num_earlier = len(shards.names(folder, PREFIX))
    sequence = np.random.SeedSequence([seed, num_earlier])  # another stretch, other text
    run_seed = int(sequence.generate_state(1)[0])
    kind = target.device.type
    num_rows = NUM_ROWS.get(kind, NUM_ROWS["cpu"])
    max_len = min(author.MAX_LEN, target.spec.max_position)
    writer = Author(
        frame,
        run_seed,
        left,
        max_len,
        answer_tokens=answer_tokens,
        greedy_share=greedy_share,
    )
    generator = Generator(
        target,
        num_rows=num_rows,
        max_len=max_len,
        end_ids=frame.end_ids,
        noise=GumbelNoise(target.spec.vocab_size, num_rows, run_seed, str(target.device)),
        keep_states=keep_states,
    )
    start = kept = clock()
    num_tokens = 0
    num_answered = len(prompts) - len(left)
    samples: list[Sample] = []
    answered: list[str] = []

    def keep() -> None:
        nonlocal kept
        now = clock()
        if samples:
            notes = shards.Notes(now - kept, tuple(answered))
            shards.write(folder, _next_name(folder), samples, notes)
        kept = now
        samples.clear()
        answered.clear()

    def add(done: Done) -> None:
        nonlocal num_tokens, num_answered
        taken = writer.take(done)
        if taken is None or not done.answer:
            return
        sample, prompt = taken
        samples.append(sample)
        if prompt is not None:
            answered.append(shards.digest(prompt))
            num_answered += 1
        num_tokens += len(done.answer)

    def finished() -> bool:
        return bool(stop) or clock() - start >= seconds - spent_s

    try:
        for done in generator.run(writer.next_job, finished):
            add(done)
            if len(samples) >= SHARD_SEQUENCES:
                keep()
            passed = clock() - start
            report((spent_s + passed) / seconds, num_tokens, num_tokens / max(passed, 1e-9))
    finally:
        keep()
    total = PromptCount(len(prompts), num_answered, writer.num_too_long, max_len)
    if num_answered < len(prompts) and not stop:
        say(str(total))
    return total


def _next_name(folder: Path) -> str:
    """Not simply the number of shards: one that was damaged may have been removed."""
    taken = set(shards.names(folder, PREFIX))
    names = (f"{PREFIX}-{number:05d}" for number in count(len(taken)))
    return next(name for name in names if name not in taken)
