"""From a target to a draft on disk: get text, train, measure, write; each part resumes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.resolve import resolve
from export.distill import artefact, corpus, device, overlap
from export.distill.checkpoint import Best
from export.distill.corpus import Sample
from export.distill.evaluate import evaluate
from export.distill.facts import Facts, Origin, license_of
from export.distill.initial import earlier_draft, initial_draft, narrowed, require_draft_of
from export.distill.llama import Llama, check_supported
from export.distill.measure import measure
from export.distill.options import Options, check_against
from export.distill.stop import held_back
from export.distill.text import Source, kept_in, load_target
from export.distill.train import FURTHER_RATE, PEAK_RATE, Budget, Labels, Progress, Trainer
from export.distill.vocabulary import choose_ids
from export.distill.work import Work
from export.progress import Report, say

if TYPE_CHECKING:
    from torch import Tensor

HELD_OUT = 0.03
NUM_CHECKS = 25  # of held-out acceptance during a run
CHECKED_SEQUENCES = 120
PATIENCE = 5  # checks without a better figure that end a run
PATIENT_SHARE = 0.5  # of a run: before it the rate is high, figures stand still, and none ends it
SAVE_EVERY_S = 300.0


def distill(options: Options, checkpoint: Checkpoint, report: Report) -> Facts:
    """Get text, train, measure, and write ``options.out``. Returns what is known of the draft."""
    check_against(options, checkpoint.spec)
    check_supported(checkpoint.spec, checkpoint.name)
    device.check(options.device)
    start = None if options.start is None else open_checkpoint(resolve(options.start))
    if start is not None:
        require_draft_of(start, checkpoint, options.num_layers)
    source = Source(options, checkpoint, report)
    source.check()
    with source.work.alone():
        return _distilled(source, start)


def _distilled(source: Source, start: Checkpoint | None) -> Facts:
    import torch

    options, checkpoint, report = source.options, source.checkpoint, source.report
    spec, work = checkpoint.spec, source.work
    torch.set_num_threads(options.num_threads)
    samples, data = source.samples()
    answers = source.answers()
    source.release_target()

    training, held_out = split(samples, options.seed)
    report("preparing", 0.0, "the draft")
    draft, ids, head = _start(options, checkpoint, start, training)
    seconds = None if options.training_minutes is None else 60.0 * options.training_minutes
    trainer = Trainer(
        draft,
        training,
        Labels(ids, spec.vocab_size, head),
        seed=options.seed,
        budget=Budget(seconds, options.passes),
        dtype=device.fast_dtype(options.device),
        peak_rate=PEAK_RATE if start is None else FURTHER_RATE,
    )
    is_early = Run(options, work, trainer, held_out, ids, report, start).go()
    report("measuring", 0.0, "on held-out text")
    facts = Facts(
        origin=Origin(checkpoint.name, checkpoint.fingerprint(), license_of(checkpoint)),
        data=data,
        layers=() if start else options.layers_for(spec),
        target_spec=spec,
        soft=options.soft,
        progress=trainer.progress,
        is_early=is_early,
        figures=measure(draft, held_out, ids),
        command=options.command(spec),
        start=None if start is None else start.name,
        start_layers=0 if start is None else start.spec.num_layers,
        evaluated_on=None if options.evaluate is None else options.evaluate.name,
        evaluation=evaluate(draft, ids, source.questions, answers),
    )
    artefact.write(options.out, draft, ids, facts)
    work.finish()
    return facts


def split(samples: Sequence[Sample], seed: int) -> tuple[list[Sample], list[Sample]]:
    """Training and held-out text. What quotes a held-out answer is in neither: tasks over an answer
    show it in their prompts, which soft labels are learned from, too. (Text that is all of one
    kind, where nothing else would be left, is used as it is.)"""
    training, held_out = corpus.hold_out(samples, HELD_OUT, seed)
    answers = [sample.ids[sample.answer_start :] for sample in held_out]
    kept, _ = overlap.without(training, answers, overlap.PASSAGE_TOKENS)
    return kept or training, held_out


def _start(
    options: Options,
    checkpoint: Checkpoint,
    start: Checkpoint | None,
    training: Sequence[Sample],
) -> tuple[Llama, npt.NDArray[np.int64], Tensor | None]:
    """The draft before training, the target ids that it proposes, and the target's head rows for
    soft labels."""
    import torch

    spec, end = checkpoint.spec, checkpoint.spec.eos_token_ids
    layers = () if start else options.layers_for(spec)
    target = load_target(checkpoint, layers).to(options.device)
    if start is not None:
        wanted = options.draft_vocab_size
        ids = None if wanted is None else choose_ids(training, spec.vocab_size, wanted, always=end)
        draft, ids = earlier_draft(start, target, ids, options.num_layers)
    else:
        ids = choose_ids(training, spec.vocab_size, options.vocab_for(spec), always=end)
        draft = initial_draft(target, layers, ids)
    head = None
    if options.soft:
        rows = torch.from_numpy(ids).to(target.device)
        head = target.head[rows].to(device.fast_dtype(options.device))
    if options.width is not None and options.width < spec.hidden_size:
        draft = narrowed(draft, training, options.width)
    return draft, ids, head


class Run:
    """Training with checkpoints, checks on held-out text, and an early end."""

    def __init__(
        self,
        options: Options,
        work: Work,
        trainer: Trainer,
        held_out: Sequence[Sample],
        ids: npt.NDArray[np.int64],
        report: Report,
        start: Checkpoint | None,
    ) -> None:
        self._work, self._trainer, self._ids, self._report = work, trainer, ids, report
        greedy = [sample for sample in held_out if sample.temperature == 0.0]
        self._checked = (greedy or list(held_out))[:CHECKED_SEQUENCES]
        self._best = Best()
        self._next_check = 1
        self._saved_s = time.monotonic()
        settings = {
            "layers": options.layers,
            "started from": None if start is None else f"{start.name}, {start.fingerprint()[:16]}",
            "number of layers": trainer.draft.spec.num_layers,
            "width": trainer.draft.spec.hidden_size,
            "vocabulary": trainer.draft.spec.draft_vocab_size,
            "labels": "soft" if options.soft else "hard",
            "seed": options.seed,
            "training text": (
                f"{trainer.num_sequences} sequences, {trainer.tokens_a_pass} tokens, "
                f"{corpus.digest(trainer.samples)}"
            ),
        }
        if work.run.exists():
            work.run.check(settings)
            self._best = work.run.load(trainer)
        else:
            work.run.start(settings)

    def go(self) -> bool:
        """Train to the end of the budget, or early; leave the best weights in the draft.

        Returns whether it ended early. A signal to stop acts when the state is on disk.
        """
        trainer, folder = self._trainer, self._work.run
        self._next_check = int(NUM_CHECKS * trainer.progress.share) + 1
        if self._best.num_worse < PATIENCE:
            with held_back() as stop:
                trainer.run(stop, self._after_step)
                folder.save(trainer, self._best)
                if stop:
                    say(kept_in(self._work))
        if trainer.progress.num_steps == 0:
            raise UsageError("no step was made: more --minutes or --passes are needed")
        is_early = self._best.num_worse >= PATIENCE
        if not is_early:
            self._check()
        folder.load_best(trainer.draft.weights)
        return is_early

    def _after_step(self, done: Progress) -> bool:
        self._report(
            "training",
            done.share,
            f"{done.num_tokens:,} tokens, {done.num_tokens / max(done.seconds, 1e-9):.0f}/s, "
            f"loss {done.loss:.3f}, held out {max(self._best.alpha, 0.0):.3f}",
        )
        if done.share * NUM_CHECKS >= self._next_check:
            self._next_check = int(NUM_CHECKS * done.share) + 1
            self._check()
        if time.monotonic() - self._saved_s >= SAVE_EVERY_S:
            self._work.run.save(self._trainer, self._best)
            self._saved_s = time.monotonic()
        return self._best.num_worse >= PATIENCE

    def _check(self) -> None:
        draft = self._trainer.draft
        alpha = measure(draft, self._checked, self._ids).alpha
        if alpha > self._best.alpha:
            self._best = Best(alpha, 0)
            self._work.run.save_best(draft.weights)
        elif self._trainer.progress.share >= PATIENT_SHARE:
            self._best = Best(self._best.alpha, self._best.num_worse + 1)
