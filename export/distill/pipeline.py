"""From a target to a draft on disk: get text, train, measure, write."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from export.checkpoint.api import Checkpoint
from export.checkpoint.spec import ModelSpec
from export.distill import artefact, corpus
from export.distill.chat import frame_of
from export.distill.corpus import Sample
from export.distill.llama import Llama
from export.distill.measure import Figures, measure
from export.distill.selfplay import write_samples
from export.distill.train import Progress, initial_draft, source_layers, train
from export.distill.vocabulary import choose_ids
from export.progress import Report

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_VOCAB = 8192
MAX_TOKENS = 512  # longer sequences are cut
HELD_OUT = 0.03
MAX_THREADS = 1024
WRITING_SHARE = 0.5  # of the minutes, where the target writes its own text


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked."""

    target: str
    out: Path
    seconds: float
    data: tuple[Path, ...]
    num_layers: int
    draft_vocab_size: int | None
    num_threads: int
    seed: int

    def vocab_for(self, spec: ModelSpec) -> int:
        """The draft's output vocabulary: as asked for, or DEFAULT_VOCAB where the target has it."""
        wanted = self.draft_vocab_size
        return min(DEFAULT_VOCAB, spec.vocab_size) if wanted is None else wanted


def distill(options: Options, checkpoint: Checkpoint, report: Report) -> tuple[Figures, Progress]:
    """Get text, train, measure on held-out text, write ``options.out``."""
    import torch

    torch.set_num_threads(options.num_threads)
    check_against(options, checkpoint.spec)
    start = time.monotonic()
    report("reading", 0.0, checkpoint.name)
    if options.data:
        layers = source_layers(options.num_layers, checkpoint.spec.num_layers)
        target = load_target(checkpoint, layers)
        samples = corpus.load(options.data, checkpoint.spec.vocab_size)
        described = ", ".join(path.name for path in options.data)
    else:
        target = load_target(checkpoint)
        samples = self_written(options, checkpoint, target, report)
        described = f"{checkpoint.name}, self-written"
    training, held_out = corpus.hold_out(corpus.cut(samples, MAX_TOKENS), HELD_OUT, options.seed)
    ids = choose_ids(
        training,
        checkpoint.spec.vocab_size,
        options.vocab_for(checkpoint.spec),
        always=checkpoint.spec.eos_token_ids,
    )
    draft = initial_draft(target, options.num_layers, ids)

    def show(done: Progress) -> None:
        report("training", done.share, f"{done.num_tokens:,} tokens, loss {done.loss:.2f}")

    spent_s = time.monotonic() - start
    if spent_s >= options.seconds:
        raise UsageError(
            f"--minutes {options.seconds / 60.0:g} is too short: {spent_s:.0f} s went into "
            "getting ready; no time is left to train"
        )
    steps = train(
        draft,
        training,
        ids,
        seconds=options.seconds - spent_s,
        seed=options.seed,
        report=show,
    )
    report("measuring", 0.0, "on held-out text")
    figures = measure(draft, held_out, ids)
    origin = artefact.Origin(checkpoint.name, checkpoint.fingerprint())
    artefact.write(options.out, draft, ids, origin, figures, described)
    return figures, steps


def self_written(
    options: Options, checkpoint: Checkpoint, target: Llama, report: Report
) -> list[Sample]:
    """Let the target write for its share of the time, in bfloat16: three times as fast."""
    import torch

    seconds = WRITING_SHARE * options.seconds
    start = time.monotonic()
    fast = Llama(
        target.spec, {name: tensor.to(torch.bfloat16) for name, tensor in target.weights.items()}
    )

    def show(num_tokens: int) -> None:
        report("writing", (time.monotonic() - start) / seconds, f"{num_tokens:,} answer tokens")

    return write_samples(
        fast,
        frame_of(checkpoint),
        options.seed,
        expired=lambda: time.monotonic() - start >= seconds,
        report=show,
    )


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


def check_options(options: Options) -> None:
    """Raise UsageError for a value that no target could take."""
    if not (math.isfinite(options.seconds) and options.seconds > 0):
        raise UsageError(f"--minutes must be above 0, found {options.seconds / 60.0:g}")
    if not 1 <= options.num_threads <= MAX_THREADS:
        raise UsageError(f"--threads must be 1 to {MAX_THREADS}, found {options.num_threads}")
    if not 0 <= options.seed < 1 << 63:
        raise UsageError(f"--seed must be 0 to 2^63 - 1, found {options.seed}")
    artefact.check_output(options.out)


def check_against(options: Options, spec: ModelSpec) -> None:
    """Raise UsageError for a draft that this target cannot give its layers or ids to."""
    if spec.draft_vocab_size is not None:
        raise UsageError(f"--target {options.target} is a draft itself; name the model it is for")
    if not 1 <= options.num_layers <= spec.num_layers:
        raise UsageError(
            f"--layers must be 1 to {spec.num_layers} (the target's layers), "
            f"found {options.num_layers}"
        )
    least = max(1, len(spec.eos_token_ids))
    if not least <= options.vocab_for(spec) <= spec.vocab_size:
        raise UsageError(
            f"--vocab must be {least} to {spec.vocab_size} (the target's vocabulary), "
            f"found {options.vocab_for(spec)}"
        )
