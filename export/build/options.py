"""What a build is asked for, checked before anything is read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from engines.manifest import DRAFT, KvLayout, Limits
from engines.profiles import trunk_rows
from export.checkpoint.spec import ModelSpec
from export.graph.precision import BACKENDS, NAMES, ONNXRUNTIME, Precision, names_for, precision_for

GPU_BACKENDS = tuple(name for name in BACKENDS if name != ONNXRUNTIME)
PRECISIONS = NAMES
BLOCKS = (64, 32)
MAX_DRAFT = 16
MAX_BRANCHES = 64
DEFAULT_PLACE = Path("engines/bundles")
_LARGEST = 2**63 - 1
"""Beyond any machine; sizes that follow from it are still within a float."""


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of ``python -m export build``. ``target`` and ``draft`` are as the user typed
    them: a path, a fetched name or a hub id. ``capabilities`` are the compute capabilities to
    compile for ("8.9"), () for all that suit; ``keep_onnx``: whether a compiled engine keeps
    the graph that it was compiled from. ``block`` 0 becomes the one that suits the precision best.
    UsageError for a value that cannot be built."""

    target: str
    draft: str | None = None
    out: Path | None = None
    backend: str = BACKENDS[0]
    precision: str = PRECISIONS[0]
    block: int = 0
    max_len: int = 1024
    max_batch: int = 1
    num_draft: int = 4
    max_branches: int = 16
    capabilities: tuple[str, ...] = ()
    keep_onnx: bool = True

    def __post_init__(self) -> None:
        blocks = self.arithmetic.blocks
        named = {"--target": self.target, "--draft": self.draft, "--out": self.out}
        for option, name in named.items():
            _recordable(option, str(name or ""))
        if self.block == 0:
            object.__setattr__(self, "block", (blocks or BLOCKS)[0])
        _one_of("--block", self.block, BLOCKS)
        if blocks and self.block not in blocks:
            raise UsageError(
                f"--block {self.block} does not fit --precision {self.precision} "
                f"on {self.backend}; use --block {blocks[0]}"
            )
        if self.backend == ONNXRUNTIME:
            for option, is_given in (
                ("--compute-capability", bool(self.capabilities)),
                ("--no-onnx", not self.keep_onnx),
            ):
                if is_given:
                    raise UsageError(
                        f"{option} is for compiled engines, {ONNXRUNTIME} runs the graph itself; "
                        f"leave it out or use --backend {' or '.join(GPU_BACKENDS)}"
                    )
        _between("--max-len", self.max_len, 2, _LARGEST)
        _between("--max-batch", self.max_batch, 1, _LARGEST)
        _between("--num-draft", self.num_draft, 0, MAX_DRAFT)
        _between("--max-branches", self.max_branches, 0, MAX_BRANCHES)

    @property
    def arithmetic(self) -> Precision:
        """What ``precision`` means on ``backend``."""
        return precision_for(self.backend, self.precision)

    @property
    def scale_block(self) -> int | None:
        """Inputs that share a scale in the weights; None where nothing is stored in blocks."""
        return self.block if self.arithmetic.blocks else None

    @property
    def describe_precision(self) -> str:
        """For people: what the engines compute in and how their weights are stored."""
        return self.arithmetic.describe(self.block)

    @property
    def place(self) -> Path:
        """Where the bundle goes: ``out``, or a folder named after the target."""
        if self.out is not None:
            return self.out
        name = Path(self.target).name.removesuffix(".gguf")
        if name in ("", ".", ".."):
            raise UsageError(f"--target {self.target!r} gives no name to the bundle; add --out DIR")
        return DEFAULT_PLACE / name

    @property
    def limits(self) -> Limits:
        return Limits(self.max_len, self.max_batch, self.num_draft, self.max_branches)

    def kv_layout(self, role: str, spec: ModelSpec) -> KvLayout:
        """The cache of one engine: the draft has K x W rows more, for a round of branches."""
        return KvLayout(
            num_layers=spec.num_layers,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=self.arithmetic.activation,
            scratch_rows=self.num_draft * self.max_branches if role == DRAFT else 0,
            trunk_rows=trunk_rows(self.max_len, self.num_draft),
        )

    def command(self) -> str:
        """The command line of this build, every option spelled out."""
        words = ["python", "-m", "export", "build", "--target", self.target]
        words += ["--draft", self.draft or "none"]
        words += ["--backend", self.backend, "--precision", self.precision]
        if self.scale_block is not None:
            words += ["--block", str(self.scale_block)]
        if self.capabilities:
            words += ["--compute-capability", *self.capabilities]
        if not self.keep_onnx:
            words.append("--no-onnx")
        words += ["--max-len", str(self.max_len), "--max-batch", str(self.max_batch)]
        words += ["--num-draft", str(self.num_draft), "--max-branches", str(self.max_branches)]
        return shlex.join([*words, "--out", str(self.place)])


def default_precision(backend: str) -> str:
    """What a build for ``backend`` has without --precision; UsageError for an unknown one."""
    return names_for(backend)[0]


def _recordable(option: str, name: str) -> None:
    """UsageError for a name that a manifest, one line of UTF-8 text, cannot hold."""
    if len(f"{name}.".splitlines()) > 1 or name != name.encode("utf-8", "replace").decode("utf-8"):
        raise UsageError(f"{option} {name!r} is not one line of UTF-8; choose another name")


def _one_of(option: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option} {value} is unknown; choose {' or '.join(map(str, allowed))}")


def _between(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        end = f"at least {least}" if value < least else f"at most {most}"
        span = end if most == _LARGEST else f"between {least} and {most}"
        shown = value if abs(value) <= _LARGEST else f"a number of {len(str(abs(value)))} digits"
        raise UsageError(f"{option} is {shown}, it must be {span}")
