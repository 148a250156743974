"""The manifests of a bundle: everything a runtime must know, and check, before it loads an engine.

A bundle directory::

    bundle.json            BundleManifest: the pair, its limits, tokenizer, build key, file list
    tokenizer.json         the one tokenizer of both models
    chat_template.jinja    only when the target's checkpoint has one
    target/  draft/        manifest.json (EngineManifest)
                           model.onnx, model.onnx.data: the graph and its weights
                           engine.plan: the compiled engine, TensorRT only (PlanFacts); the graph
                           is then there unless it was left out (--no-onnx)
                           vocab_map.npy: only of a draft of reduced vocabulary, its ids in target
                           ids

Paths in a manifest are relative, use ``/`` and never leave the bundle.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from engines.codec import DecodeError, decode, encode
from engines.errors import BundleCorruptError, BundleIncompatibleError
from engines.fidelity import WeightFidelity
from engines.profiles import ShapeProfile, shape_profiles
from engines.tensors import DType, TensorSpec

SCHEMA = 3
BUNDLE_FILE = "bundle.json"
ENGINE_FILE = "manifest.json"
TARGET, DRAFT = "target", "draft"
PRECISIONS = ("int8", "fp32", "fp16", "bf16", "int4")
_MOST = 2**64
"""More than any build may ask for; sizes that follow from it are still within a float."""
_CAPABILITY = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engines were built for. K = ``num_draft``, W = ``max_branches``."""

    max_len: int
    max_batch: int
    num_draft: int
    max_branches: int

    def __post_init__(self) -> None:
        _positive("max_len", self.max_len)
        _positive("max_batch", self.max_batch)
        _positive("num_draft", self.num_draft, least=0)
        _positive("max_branches", self.max_branches, least=0)


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One slot's cache rows: ``scratch_rows`` for branches first, then ``trunk_rows`` for the text.

    Scratch comes first so that its address does not move while the text grows, and one
    contiguous range of rows holds both. Key and value are [slots, num_kv_heads, rows, head_dim].
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: DType
    scratch_rows: int
    trunk_rows: int

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "trunk_rows"):
            _positive(name, getattr(self, name))
        _positive("scratch_rows", self.scratch_rows, least=0)

    @property
    def rows(self) -> int:
        return self.scratch_rows + self.trunk_rows

    @property
    def bytes_per_row(self) -> int:
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def bytes_for(self, num_slots: int) -> int:
        """Memory of the whole cache, keys and values, all layers."""
        return num_slots * self.rows * self.bytes_per_row


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model inside an engine. A reduced draft has an ``output_vocab`` below ``vocab_size``."""

    family: str
    num_parameters: int
    vocab_size: int
    output_vocab: int
    hidden_size: int
    num_layers: int
    num_heads: int
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "output_vocab", "hidden_size", "num_layers", "num_heads"):
            _positive(name, getattr(self, name))
        _positive("num_parameters", self.num_parameters)
        if self.output_vocab > self.vocab_size:
            raise ValueError(
                f"output_vocab {self.output_vocab} exceeds vocab_size {self.vocab_size}"
            )
        for token in (*self.eos_token_ids, self.bos_token_id or 0):
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} is outside the {self.vocab_size} of the model")


@dataclass(frozen=True, slots=True)
class Source:
    """The checkpoint an engine was built from: a name for people, a fingerprint for machines.

    ``stored`` are the types that its weights are stored in, that of most tensors first ("BF16").
    What the engine computes in is the type of its caches, ``KvLayout.dtype``.
    """

    name: str
    fingerprint: str
    stored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str
    size: int
    sha256: str

    def __post_init__(self) -> None:
        check_path(self.path)
        _positive("size", self.size, least=0)
        if len(self.sha256) != 64:
            raise ValueError(
                f"sha256 of {self.path} has {len(self.sha256)} characters, expected 64"
            )


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A compiled TensorRT engine: where it may run and what it must find there.

    ``builder`` is the compiler's name and version (a plan of another version cannot be read),
    ``capabilities`` the compute capabilities it was compiled for ("8.9"), ``plugins`` each
    plugin layer as "namespace::name@version".
    """

    file: str
    builder: str
    capabilities: tuple[str, ...]
    profiles: tuple[ShapeProfile, ...]
    plugins: tuple[str, ...]

    def __post_init__(self) -> None:
        check_path(self.file)
        if not self.capabilities or not all(map(_CAPABILITY.fullmatch, self.capabilities)):
            raise ValueError("capabilities of a plan are one or more, each as 8.9")


@dataclass(frozen=True, slots=True)
class EngineManifest:
    """One engine: its graph with the weights, its plan where it was compiled, how to call it."""

    schema: int
    role: str
    backend: str
    precision: str
    model: ModelFacts
    limits: Limits
    kv: KvLayout
    lengths: tuple[int, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    plugins: tuple[str, ...]
    vocab_map: str | None
    plan: PlanFacts | None
    source: Source
    builder: dict[str, str]
    files: tuple[FileEntry, ...]
    fidelity: WeightFidelity | None = None  # None: nothing was rounded, or it was not measured

    def __post_init__(self) -> None:
        if self.role not in (TARGET, DRAFT):
            raise ValueError(f"role {self.role!r} is neither target nor draft")
        _check_precision(self.precision)
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise ValueError("lengths must rise")
        _positive("lengths", self.lengths[0])
        if self.lengths[-1] != self.kv.rows:
            raise ValueError(
                f"lengths end at {self.lengths[-1]}, the cache has {self.kv.rows} rows"
            )
        limits, kv = self.limits, self.kv
        _positive("trunk_rows", kv.trunk_rows, least=limits.max_len + limits.num_draft)
        if self.role == DRAFT:
            _positive("scratch_rows", kv.scratch_rows, limits.num_draft * limits.max_branches)
        if self.vocab_map is not None:
            check_path(self.vocab_map)
        if self.vocab_map is None and self.model.output_vocab != self.model.vocab_size:
            raise ValueError("a reduced vocabulary needs a vocab_map")
        if self.plan is not None and self.plan.profiles != shape_profiles(
            self.role,
            max_batch=limits.max_batch,
            num_draft=limits.num_draft,
            max_branches=limits.max_branches,
            rows=kv.rows,
        ):
            raise ValueError("the plan's profiles are not those of the limits")

    @property
    def weight_bytes(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """What the draft's maker measured on held-out text: only a prior, never trusted for exactness.

    ``ranks[f]`` is the share of positions whose target token was the draft's f-th candidate
    (ranks[0] is the greedy agreement).
    """

    ranks: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(not 0 <= share <= 1 for share in self.ranks):
            raise ValueError("ranks are shares, expected numbers from 0 to 1")


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """A pair, or a target alone."""

    schema: int
    name: str
    backend: str
    precision: str
    limits: Limits
    has_draft: bool
    tokenizer: str
    chat_template: str | None
    special_tokens: dict[str, str]
    draft_figures: DraftFigures | None
    build_key: str
    rebuild: str
    files: tuple[FileEntry, ...]

    def __post_init__(self) -> None:
        _check_precision(self.precision)
        if len(self.rebuild.splitlines()) > 1:
            raise ValueError("rebuild is more than one line")
        check_path(self.tokenizer)
        if self.chat_template is not None:
            check_path(self.chat_template)


Manifest = EngineManifest | BundleManifest
M = TypeVar("M", EngineManifest, BundleManifest)


def dump(manifest: Manifest) -> str:
    """The manifest as JSON text, stable for equal content."""
    return json.dumps(encode(manifest), indent=1, ensure_ascii=False) + "\n"


def load_engine(text: str, where: str) -> EngineManifest:
    """An engine's manifest from JSON; ``where`` names the file in errors."""
    return _load(EngineManifest, text, where)


def load_bundle(text: str, where: str) -> BundleManifest:
    """A bundle's manifest from JSON; ``where`` names the file in errors."""
    return _load(BundleManifest, text, where)


def _load(kind: type[M], text: str, where: str) -> M:
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repetition)
    except (ValueError, RecursionError) as error:
        raise BundleCorruptError(f"{where} is not JSON ({error}); rebuild the bundle") from None
    if not isinstance(value, dict) or type(value.get("schema")) is not int:
        raise BundleCorruptError(f"{where} is not a manifest of ssd-trt (no schema number)")
    if value["schema"] != SCHEMA:
        raise BundleIncompatibleError(
            f"{where} has schema {value['schema']}, this version reads schema {SCHEMA}; "
            f"rebuild it: {_rebuild_line(value)}"
        )
    try:
        return decode(kind, value)
    except DecodeError as error:
        raise BundleCorruptError(f"{where} is damaged or foreign: {error}") from None


def _rebuild_line(value: dict[str, object]) -> str:
    line = value.get("rebuild")
    return line if isinstance(line, str) and line.isprintable() else "python -m export build ..."


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


def _no_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Readers differ in which of two equal names they believe."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def check_path(path: str) -> None:
    """ValueError unless ``path`` is relative, normal and stays below its folder."""
    pure = PurePosixPath(path)
    strange = "\\" in path or not path.isprintable()
    if not pure.name or pure.is_absolute() or strange or ".." in pure.parts or str(pure) != path:
        raise ValueError(f"path {path!r} leaves the bundle or is not in normal form")


def _check_precision(name: str) -> None:
    if name not in PRECISIONS:
        raise ValueError(f"precision {name!r} is none of {', '.join(PRECISIONS)}")


def _positive(name: str, value: int, least: int = 1) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}, expected at least {least}")
    if value > _MOST:
        raise ValueError(f"{name} is {value}, expected at most {_MOST}")
