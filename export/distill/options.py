"""The options of ``python -m export distill``, and what no run could do anything with."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from export.checkpoint.spec import ModelSpec
from export.distill import artefact
from export.distill.author import ANSWER_TOKENS, GREEDY_SHARE, MAX_LEN
from export.distill.initial import source_layers

DEFAULT_VOCAB = 8192
DEFAULT_LAYERS = 2
DEFAULT_MINUTES = 10.0
MAX_THREADS = 1024
WIDTH_STEP = 32  # the smallest block of inputs that share a scale


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    target: str
    out: Path
    data: tuple[Path, ...] = ()
    prompts: Path | None = None
    answer_tokens: int = ANSWER_TOKENS  # at most, of an answer to one of the prompts
    greedy_share: float = GREEDY_SHARE  # of the answers that the target writes
    evaluate: Path | None = None
    minutes: float | None = None  # of training
    passes: float | None = None  # over the data
    write_minutes: float | None = None  # that the target writes
    soft: bool = True
    layers: tuple[int, ...] = ()  # of the target; () = num_layers of them from both ends
    num_layers: int | None = None  # None = DEFAULT_LAYERS, or those of the draft it goes on from
    start: str | None = None  # an earlier draft to go on from, with its width
    width: int | None = None
    draft_vocab_size: int | None = None
    device: str = "cpu"
    num_threads: int = 1
    seed: int = 0
    work: Path | None = None
    resume: bool = False

    @property
    def training_minutes(self) -> float | None:
        """The limit in minutes, None where only passes limit training."""
        if self.minutes is None and self.passes is None:
            return DEFAULT_MINUTES
        return self.minutes

    @property
    def writing_minutes(self) -> float:
        """By default the target writes for as long as the draft learns, unless there is data."""
        if self.write_minutes is not None:
            return self.write_minutes
        return 0.0 if self.data else self.training_minutes or DEFAULT_MINUTES

    @property
    def work_folder(self) -> Path:
        return self.work or self.out.with_name(f"{self.out.name}.work")

    def layers_for(self, spec: ModelSpec) -> tuple[int, ...]:
        """The target's layers that the draft starts from."""
        return self.layers or tuple(
            source_layers(self.num_layers or DEFAULT_LAYERS, spec.num_layers)
        )

    def vocab_for(self, spec: ModelSpec) -> int:
        """The draft's output vocabulary: as asked for, or DEFAULT_VOCAB where the target has it."""
        wanted = self.draft_vocab_size
        return min(DEFAULT_VOCAB, spec.vocab_size) if wanted is None else wanted

    def command(self, spec: ModelSpec) -> str:
        """A command line that asks for the same; files by their names alone."""
        words = ["python -m export distill --target", shlex.quote(_last_name(self.target))]
        words += ["--out", shlex.quote(self.out.name)]
        if self.start is not None:
            words += ["--start-from", shlex.quote(_last_name(self.start))]
            words += [] if self.num_layers is None else ["--layers", str(self.num_layers)]
        else:
            words += ["--from-layers", *map(str, self.layers_for(spec))]
        if self.start is None or self.draft_vocab_size is not None:
            words += ["--vocab", str(self.vocab_for(spec))]
        words += ["--seed", str(self.seed)]
        if self.data:
            words += ["--data", *(shlex.quote(path.name) for path in self.data)]
        for option, value in (
            ("--prompts", self.prompts and shlex.quote(self.prompts.name)),
            ("--answer-tokens", _unless(self.answer_tokens, ANSWER_TOKENS)),
            ("--greedy", _unless(self.greedy_share, GREEDY_SHARE)),
            ("--evaluate", self.evaluate and shlex.quote(self.evaluate.name)),
            ("--minutes", self.training_minutes and f"{self.training_minutes:g}"),
            ("--passes", self.passes and f"{self.passes:g}"),
            ("--write-minutes", f"{self.writing_minutes:g}"),
            ("--work", self.work and shlex.quote(self.work.name)),
            ("--width", self.width),
            ("--labels", None if self.soft else "hard"),
            ("--device", self.device),
            ("--threads", self.num_threads),
        ):
            if value is not None:
                words.append(f"{option} {value}")
        return " ".join(words)


def _unless(value: float, default: float) -> str | None:
    return None if value == default else repr(value)


def _last_name(place: str) -> str:
    """Of a path on this machine its last part; a name or a hub id as it is."""
    path = Path(place)
    return path.resolve().name if path.exists() else place


def check(options: Options) -> None:
    """Raise UsageError for a value that no target could take."""
    for name, value in (("--minutes", options.minutes), ("--passes", options.passes)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} must be above 0, found {value:g}")
    if not (math.isfinite(options.writing_minutes) and options.writing_minutes >= 0):
        raise UsageError(f"--write-minutes must be 0 or more, found {options.writing_minutes:g}")
    if options.writing_minutes == 0 and not (options.data or options.work):
        raise UsageError("--write-minutes 0 leaves no text to train on; give --data or --work")
    if options.prompts is not None and options.writing_minutes == 0:
        raise UsageError("--prompts needs time for the target to answer: give --write-minutes")
    if not 1 <= options.answer_tokens < MAX_LEN:
        raise UsageError(
            f"--answer-tokens must be 1 to {MAX_LEN - 1}, found {options.answer_tokens}"
        )
    if options.answer_tokens != ANSWER_TOKENS and options.prompts is None:
        raise UsageError("--answer-tokens is of answers to --prompts: give a file, or leave it out")
    if options.greedy_share != GREEDY_SHARE and options.writing_minutes == 0:
        raise UsageError("--greedy is of text that the target writes: give --write-minutes")
    if not 0.0 <= options.greedy_share <= 1.0:
        raise UsageError(f"--greedy must be 0 to 1, found {options.greedy_share:g}")
    if not 1 <= options.num_threads <= MAX_THREADS:
        raise UsageError(f"--threads must be 1 to {MAX_THREADS}, found {options.num_threads}")
    if not 0 <= options.seed < 1 << 63:
        raise UsageError(f"--seed must be 0 to 2^63 - 1, found {options.seed}")
    if options.num_layers is not None and options.num_layers < 1:
        raise UsageError(f"--layers must be 1 or more, found {options.num_layers}")
    if options.num_layers is not None and options.layers:
        raise UsageError("--layers and --from-layers say the same in two ways: leave one out")
    if options.start is not None and (options.layers or options.width):
        raise UsageError(
            "--start-from keeps a draft's width and layers (--layers N adds to them): leave out "
            "--from-layers and --width"
        )
    artefact.check_output(options.out)


def check_against(options: Options, spec: ModelSpec) -> None:
    """Raise UsageError for a draft that this target cannot give its layers or ids to."""
    if spec.draft_vocab_size is not None:
        raise UsageError(f"--target {options.target} is a draft itself; name the model it is for")
    wanted = options.num_layers or (0 if options.start is not None else DEFAULT_LAYERS)
    if not options.layers and wanted > spec.num_layers:
        raise UsageError(
            f"--layers must be 1 to {spec.num_layers} (the target's layers), found {wanted}"
        )
    for layer in options.layers:
        if not 0 <= layer < spec.num_layers:
            raise UsageError(
                f"--from-layers: the target has layers 0 to {spec.num_layers - 1}, found {layer}"
            )
    least = max(1, len(spec.eos_token_ids))
    if not least <= options.vocab_for(spec) <= spec.vocab_size:
        raise UsageError(
            f"--vocab must be {least} to {spec.vocab_size} (the target's vocabulary), "
            f"found {options.vocab_for(spec)}"
        )
    if options.width is not None and not 1 <= options.width <= spec.hidden_size:
        raise UsageError(
            f"--width must be 1 to {spec.hidden_size} (the target's), found {options.width}"
        )
    if (
        options.width is not None
        and options.width != spec.hidden_size
        and options.width % WIDTH_STEP
    ):
        raise UsageError(
            f"--width must be a multiple of {WIDTH_STEP} to be built in 8 or 4 bits, "
            f"found {options.width}"
        )
