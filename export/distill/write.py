"""The target writes its own training text into shards, with its states beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from export.distill import author, shards
from export.distill.author import Author
from export.distill.chat import Frame
from export.distill.corpus import Sample
from export.distill.generate import Done, Generator
from export.distill.llama import Llama
from export.distill.noise import GumbelNoise
from export.distill.stop import Stop

PREFIX = "written"
SHARD_SEQUENCES = 128
NUM_ROWS = {"cpu": 64, "cuda": 256}


def seconds_spent(folder: Path) -> float:
    """What has gone into the shards of ``folder`` so far."""
    return sum(shards.notes(folder, name).seconds for name in shards.names(folder, PREFIX))


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
) -> None:
    """Add shards to ``folder`` until ``seconds`` have gone into it, those of earlier runs included.

    ``prompts`` are answered first, each once, with at most ``answer_tokens``. ``report`` gets the
    share of the time, the answer tokens and their rate a second. Asked to stop, it keeps all that
    has been written and returns.
    """
    earlier = [shards.notes(folder, name) for name in shards.names(folder, PREFIX)]
    spent_s = seconds_spent(folder)
    answered = {index for each in earlier for index in each.prompts}
    left = [(index, text) for index, text in enumerate(prompts) if index not in answered]
    sequence = np.random.SeedSequence([seed, len(earlier)])  # another stretch, other text
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
    samples: list[Sample] = []
    used: list[int] = []

    def keep() -> None:
        nonlocal kept
        now = clock()
        if samples:
            number = len(shards.names(folder, PREFIX))
            notes = shards.Notes(now - kept, tuple(used))
            shards.write(folder, f"{PREFIX}-{number:05d}", samples, notes)
        kept = now
        samples.clear()
        used.clear()

    def add(done: Done) -> None:
        nonlocal num_tokens
        taken = writer.take(done)
        if taken is None or not done.answer:
            return
        sample, prompt_index = taken
        samples.append(sample)
        if prompt_index is not None:
            used.append(prompt_index)
        num_tokens += len(done.answer)

    def finished() -> bool:
        return bool(stop) or clock() - start >= seconds - spent_s

    for done in generator.run(writer.next_job, finished):
        add(done)
        if len(samples) >= SHARD_SEQUENCES:
            keep()
        passed = clock() - start
        report((spent_s + passed) / seconds, num_tokens, num_tokens / max(passed, 1e-9))
    keep()
