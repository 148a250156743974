"""Gets the text that a draft learns from, and the target's answers that it is evaluated on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from export.checkpoint.api import Checkpoint
from export.distill import corpus, evaluate, overlap, shards, teach, write
from export.distill.chat import Frame, frame_of
from export.distill.corpus import Sample
from export.distill.device import fast_dtype
from export.distill.facts import Data
from export.distill.llama import Llama
from export.distill.options import Options
from export.distill.prompts import Question, read_prompts, read_questions
from export.distill.stop import held_back
from export.distill.work import Work
from export.progress import Report, say

if TYPE_CHECKING:
    from torch import Tensor

MAX_TOKENS = 1024  # longer sequences are cut


@dataclass
class Source:
    """The target and its texts. What is expensive is made when it is first asked for."""

    options: Options
    checkpoint: Checkpoint
    report: Report

    @cached_property
    def work(self) -> Work:
        return Work(self.options, self.checkpoint.fingerprint())

    @cached_property
    def frame(self) -> Frame:
        return frame_of(self.checkpoint)

    @cached_property
    def target(self) -> Llama:
        """The whole target, in the fast type on its device."""
        self.report("reading", 0.0, self.checkpoint.name)
        device = self.options.device
        return load_target(self.checkpoint).to(device, fast_dtype(device))

    @cached_property
    def questions(self) -> list[Question]:
        path = self.options.evaluate
        return [] if path is None else read_questions(path)

    @cached_property
    def prompts(self) -> list[str]:
        path = self.options.prompts
        return [] if path is None else read_prompts(path)

    @cached_property
    def data(self) -> list[list[Sample]]:
        """The sequences of the data files, without states."""
        return [corpus.load([path], self._vocab_size) for path in self.options.data]

    def check(self) -> None:
        """Read all files that were given: a mistake must show now, not after hours."""
        _ = self.questions, self.prompts, self.data

    def release_target(self) -> None:
        self.__dict__.pop("target", None)

    def samples(self) -> tuple[list[Sample], Data]:
        """All text, written and read now as far as it is not there yet.

        A signal to stop acts as soon as what has been done is on disk.
        """
        options, folder = self.options, self.work.text
        # Not once training has begun: it must find the text that it began with.
        if options.writing_minutes and not self.work.run.exists():
            self.work.run.settle_text(self._text_settings())
            self._write()
        names, found = list[str](), list[Sample]()
        written = shards.names(folder, f"{write.PREFIX}-")
        if written:
            names.append("self-written")
            found += shards.read(folder, written, self._vocab_size)
        for path, samples in zip(options.data, self.data, strict=True):
            names.append(path.name)
            found += self._taught(path, samples) if options.soft else samples
        if options.soft:
            self._require_states(found)
        kept, num_refused = self._unknown(found)
        kept = corpus.cut(kept, MAX_TOKENS)
        return kept, Data(
            names=tuple(names),
            num_sequences=len(kept),
            num_tokens=sum(len(sample) for sample in kept),
            num_answer_tokens=sum(len(sample) - sample.answer_start for sample in kept),
            num_greedy=sum(sample.temperature == 0.0 for sample in kept),
            num_refused=num_refused,
        )

    def _require_states(self, samples: Sequence[Sample]) -> None:
        width = self.checkpoint.spec.hidden_size
        for sample in samples:
            if sample.states is None:
                raise UsageError(
                    f"{self.work.text} holds text without the target's states, written with "
                    "--labels hard; use these labels, or another --work"
                )
            if sample.states.shape[1] != width:
                raise UsageError(
                    f"{self.work.text} holds states {sample.states.shape[1]} wide, the target's "
                    f"are {width}: they are another target's; name another --work"
                )

    def answers(self) -> list[Sample]:
        """The target's answers to the evaluation file; empty without one."""
        path, folder = self.options.evaluate, self.work.text
        if path is None:
            return []
        found = evaluate.answers_of(folder, path, self.questions, self._vocab_size)
        if found is None:

            def show(share: float) -> None:
                self.report("answering", share, path.name)

            found = evaluate.answer(self.target, self.frame, self.questions, show)
            shards.write(folder, evaluate.prefix_of(path), found)
        num_left_out = sum(len(sample) == sample.answer_start for sample in found)
        if num_left_out:
            say(
                f"--evaluate {path}: left out {num_left_out:,} of {len(found):,} questions, which "
                f"leave no room for {evaluate.NUM_TOKENS} tokens in the target's "
                f"{self.checkpoint.spec.max_position:,} positions"
            )
        return found

    def _unknown(self, samples: list[Sample]) -> tuple[list[Sample], int]:
        """The samples that have nothing of the evaluation file, and how many have."""
        turns = [turn for each in self.questions for turn in each.turns]
        if not turns:
            return samples, 0
        frame = self.frame
        kept, quoting = overlap.without(samples, map(frame.encode, turns))
        framed = (frame.encode(frame.before + turn + frame.after) for turn in turns)
        kept, asking = overlap.without_prompts(kept, framed)
        return kept, quoting + asking

    @property
    def _vocab_size(self) -> int:
        return self.checkpoint.spec.vocab_size

    def _text_settings(self) -> dict[str, object]:
        options = self.options
        content = None if options.prompts is None else options.prompts.read_bytes()
        return {
            "--greedy": options.greedy_share,
            "--answer-tokens": options.answer_tokens,
            "--prompts": content and f"of SHA-256 {hashlib.sha256(content).hexdigest()[:16]}",
        }

    def _write(self) -> None:
        options = self.options
        seconds = 60.0 * options.writing_minutes
        if write.seconds_spent(self.work.text) >= seconds:
            left = write.unanswered(self.work.text, self.prompts)
            if left:
                say(
                    f"{len(left):,} of {len(self.prompts):,} prompts are not answered: the time "
                    "for writing is spent; give more --write-minutes"
                )
            return

        def show(share: float, num_tokens: int, rate: float) -> None:
            words = f"{num_tokens:,} answer tokens, {rate:.0f} tokens/s"
            self.report("writing", min(share, 1.0), words)

        target, frame = self.target, self.frame
        with held_back() as stop:
            write.write_text(
                target,
                frame,
                self.work.text,
                seconds=seconds,
                seed=options.seed,
                prompts=self.prompts,
                answer_tokens=options.answer_tokens,
                greedy_share=options.greedy_share,
                keep_states=options.soft,
                stop=stop,
                report=show,
            )
            if stop:
                say(kept_in(self.work))

    def _taught(self, path: Path, samples: list[Sample]) -> list[Sample]:
        """The sequences of a data file with the target's states, read now or earlier."""
        samples = corpus.cut(samples, MAX_TOKENS)
        folder, prefix = self.work.text, teach.prefix_of(path)
        if len(shards.names(folder, prefix)) < teach.num_shards(samples):
            start = time.monotonic()

            def show(share: float, num_tokens: int) -> None:
                rate = num_tokens / max(1e-9, time.monotonic() - start)
                self.report(f"states of {path.name}", share, f"{rate:.0f} tokens/s")

            target = self.target
            with held_back() as stop:
                teach.read_text(target, samples, folder, prefix, stop, show)
                if stop:
                    say(kept_in(self.work))
        return list(shards.read(folder, shards.names(folder, prefix), self._vocab_size))


def kept_in(work: Work) -> str:
    """What to tell somebody who stops a run."""
    return f"what has been done is kept in {work.path}; the same command goes on with --resume"


def load_target(checkpoint: Checkpoint, layers: Collection[int] | None = None) -> Llama:
    """The target in float32; with ``layers``, only what a draft made of those layers needs."""
    import torch

    unused = {
        name
        for name in checkpoint.tensor_names()
        if layers is not None
        and name.startswith("model.layers.")
        and int(name.split(".")[2]) not in layers
    }
    weights: dict[str, Tensor] = {
        name: torch.from_numpy(checkpoint.tensor(name))
        for name in checkpoint.tensor_names()
        if name not in unused
    }
    return Llama(checkpoint.spec, weights)
