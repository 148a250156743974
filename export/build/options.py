"""What a build is asked for, checked before anything is read."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from engines.manifest import DRAFT, KvLayout, Limits
from engines.profiles import trunk_rows
from engines.tensors import DType
from export.checkpoint.spec import ModelSpec

BACKENDS = ("onnxruntime",)
LATER_BACKENDS = ("tensorrt", "tensorrt-rtx")
PRECISIONS = ("int8", "fp32")
BLOCKS = (64, 32)
MAX_DRAFT = 16
MAX_BRANCHES = 64
DEFAULT_PLACE = Path("engines/bundles")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """The options of ``python -m export build``. ``target`` and ``draft`` are as the user typed
    them: a path, a fetched name or a hub id. UsageError for a value that cannot be built."""

    target: str
    draft: str | None = None
    out: Path | None = None
    backend: str = BACKENDS[0]
    precision: str = PRECISIONS[0]
    block: int = BLOCKS[0]
    max_len: int = 1024
    max_batch: int = 1
    num_draft: int = 4
    max_branches: int = 16

    def __post_init__(self) -> None:
        named = {"--target": self.target, "--draft": self.draft, "--out": self.out}
        for option, name in named.items():
            _recordable(option, str(name or ""))
        if self.backend in LATER_BACKENDS:
            raise UsageError(
                f"this version cannot build for {self.backend} yet; use --backend {BACKENDS[0]}"
            )
        _one_of("--backend", self.backend, BACKENDS)
        _one_of("--precision", self.precision, PRECISIONS)
        _one_of("--block", self.block, BLOCKS)
        _between("--max-len", self.max_len, 2, None)
        _between("--max-batch", self.max_batch, 1, None)
        _between("--num-draft", self.num_draft, 0, MAX_DRAFT)
        _between("--max-branches", self.max_branches, 0, MAX_BRANCHES)

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
            dtype=DType.FLOAT32,
            scratch_rows=self.num_draft * self.max_branches if role == DRAFT else 0,
            trunk_rows=trunk_rows(self.max_len, self.num_draft),
        )

    def command(self) -> str:
        """The command line of this build, every option spelled out."""
        words = ["python", "-m", "export", "build", "--target", self.target]
        words += ["--draft", self.draft or "none"]
        words += ["--backend", self.backend, "--precision", self.precision]
        if self.precision == "int8":
            words += ["--block", str(self.block)]
        words += ["--max-len", str(self.max_len), "--max-batch", str(self.max_batch)]
        words += ["--num-draft", str(self.num_draft), "--max-branches", str(self.max_branches)]
        return shlex.join([*words, "--out", str(self.place)])


def _recordable(option: str, name: str) -> None:
    """UsageError for a name that a manifest, one line of UTF-8 text, cannot hold."""
    if len(f"{name}.".splitlines()) > 1 or name != name.encode("utf-8", "replace").decode("utf-8"):
        raise UsageError(f"{option} {name!r} is not one line of UTF-8; choose another name")


def _one_of(option: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise UsageError(f"{option} {value} is unknown; choose {' or '.join(map(str, allowed))}")


def _between(option: str, value: int, least: int, most: int | None) -> None:
    if value < least or (most is not None and value > most):
        span = f"at least {least}" if most is None else f"between {least} and {most}"
        raise UsageError(f"{option} is {value}, it must be {span}")
