"""Open a bundle and check it; seal what a builder wrote.

Every file is covered by a size and a hash: ``bundle.json`` lists the tokenizer, the chat template
and the engines' manifests, and an engine's manifest lists the files of its folder. Sizes are
always checked; hashing all the weights takes a while and is asked for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engines.border import graph_inputs, graph_outputs
from engines.errors import BundleCorruptError, BundleMissingError
from engines.manifest import (
    BUNDLE_FILE,
    DRAFT,
    ENGINE_FILE,
    TARGET,
    BundleManifest,
    EngineManifest,
    FileEntry,
    dump,
    load_bundle,
    load_engine,
)

MODEL_FILE = "model.onnx"
PLAN_FILE = "engine.plan"
TOKENIZER_FILE = "tokenizer.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
VOCAB_MAP_FILE = "vocab_map.npy"
SMALL_FILE = 16 * 2**20
"""Files below this many bytes are hashed whenever a bundle is opened."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle: its folder as it was named, and its manifests, all checked."""

    path: Path
    manifest: BundleManifest
    target: EngineManifest
    draft: EngineManifest | None

    @property
    def engines(self) -> tuple[EngineManifest, ...]:
        return (self.target,) if self.draft is None else (self.target, self.draft)

    @property
    def num_bytes(self) -> int:
        """Size of all files that the manifests list."""
        files = [*self.manifest.files, *(f for engine in self.engines for f in engine.files)]
        return sum(file.size for file in files)

    @property
    def tokenizer_path(self) -> Path:
        return self.path / self.manifest.tokenizer

    @property
    def chat_template_path(self) -> Path | None:
        template = self.manifest.chat_template
        return None if template is None else self.path / template

    def model_path(self, role: str) -> Path:
        """The graph. A compiled engine may have been built without it (``--no-onnx``)."""
        return self.path / role / MODEL_FILE

    def plan_path(self, role: str) -> Path | None:
        """The compiled engine; None for one that runs from its graph."""
        engine = self.draft if role == DRAFT else self.target
        plan = None if engine is None else engine.plan
        return None if plan is None else self.path / role / plan.file

    def vocab_map_path(self) -> Path | None:
        """The draft's map (int32 [draft vocabulary], target ids); None when it speaks all ids."""
        if self.draft is None or self.draft.vocab_map is None:
            return None
        return self.path / DRAFT / self.draft.vocab_map


def open_bundle(path: str | Path, *, hashes: Literal["small", "all"] = "small") -> Bundle:
    """Read the manifests of the bundle at ``path`` and check its files against them.

    Raises BundleMissingError (nothing there, or a folder that is no bundle), BundleCorruptError
    (a file is missing, of another size or content, or lies outside the bundle; a manifest is
    damaged) and BundleIncompatibleError (another schema).
    """
    root = Path(path)
    if not _is_file(root / BUNDLE_FILE):
        what = f"{root} is not a bundle (no {BUNDLE_FILE} in it)"
        raise BundleMissingError(
            f"{what if _exists(root) else f'no bundle at {root}'}; "
            f"build one: python -m export build --target NAME --out {root}"
        )
    manifest = load_bundle(_read_text(root, BUNDLE_FILE, None), str(root / BUNDLE_FILE))
    roles = (TARGET, DRAFT) if manifest.has_draft else (TARGET,)
    engines = {role: _load_engine(root, role, manifest) for role in roles}
    listed = {file.path for file in manifest.files}
    needed = {manifest.tokenizer, *(f"{role}/{ENGINE_FILE}" for role in roles)}
    if manifest.chat_template is not None:
        needed.add(manifest.chat_template)
    _require_listed(needed, listed, root / BUNDLE_FILE, manifest.rebuild)
    hash_below = SMALL_FILE if hashes == "small" else None
    for file in _all_files(manifest, engines):
        _check_file(root, file, hash_below, manifest.rebuild)
    return Bundle(root, manifest, engines[TARGET], engines.get(DRAFT))


def _load_engine(root: Path, role: str, bundle: BundleManifest) -> EngineManifest:
    where = root / role / ENGINE_FILE
    engine = load_engine(_read_text(root, f"{role}/{ENGINE_FILE}", bundle.rebuild), str(where))
    for name, found, expected in (
        ("role", engine.role, role),
        ("backend", engine.backend, bundle.backend),
        ("precision", engine.precision, bundle.precision),
        ("limits", engine.limits, bundle.limits),
    ):
        if found != expected:
            raise BundleCorruptError(
                f"{where} has {name} {found}, the bundle has {expected}; rebuild: {bundle.rebuild}"
            )
    _require_border(engine, where, bundle.rebuild)
    needed = {MODEL_FILE if engine.plan is None else engine.plan.file}
    needed |= {engine.vocab_map} if engine.vocab_map else set()
    _require_listed(needed, {file.path for file in engine.files}, where, bundle.rebuild)
    return engine


def _require_border(engine: EngineManifest, where: Path, rebuild: str) -> None:
    """Every input and output is there, by name; a runtime compares the rest with the engine."""
    if engine.kv.num_layers > len(engine.inputs):  # before a table for that many layers is made
        raise BundleCorruptError(
            f"{where} has {len(engine.inputs)} inputs for {engine.kv.num_layers} layers; "
            f"rebuild: {rebuild}"
        )
    expected = (
        ("inputs", engine.inputs, graph_inputs(engine.role, engine.kv, "L")),
        (
            "outputs",
            engine.outputs,
            graph_outputs(engine.role, engine.kv, "L", engine.model.output_vocab),
        ),
    )
    for what, found, wanted in expected:
        if different := {spec.name for spec in found} ^ {spec.name for spec in wanted}:
            raise BundleCorruptError(
                f"{where} has other {what} than such an engine, first {min(different)}; "
                f"rebuild: {rebuild}"
            )


def _require_listed(needed: set[str], listed: set[str], where: Path, rebuild: str) -> None:
    if absent := sorted(needed - listed):
        raise BundleCorruptError(f"{where} does not list {absent[0]}; rebuild: {rebuild}")


def _all_files(manifest: BundleManifest, engines: dict[str, EngineManifest]) -> Iterator[FileEntry]:
    yield from manifest.files
    for role, engine in engines.items():
        for file in engine.files:
            yield dataclasses.replace(file, path=f"{role}/{file.path}")


def _check_file(root: Path, file: FileEntry, hash_below: int | None, rebuild: str) -> None:
    path = _locate(root, file.path, rebuild)
    try:
        size = path.stat().st_size
        if size != file.size:
            raise BundleCorruptError(
                f"{path} has {size} bytes, expected {file.size} (an interrupted copy?); "
                f"copy it again or rebuild: {rebuild}"
            )
        if (hash_below is None or size < hash_below) and sha256_of(path) != file.sha256:
            raise BundleCorruptError(
                f"{path} is not the file that was built (its sha256 differs); rebuild: {rebuild}"
            )
    except OSError as error:
        raise _unreadable(error, root, path) from None


def _read_text(root: Path, name: str, rebuild: str | None) -> str:
    path = _locate(root, name, rebuild)
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise _unreadable(error, root, path) from None
    except UnicodeDecodeError:
        raise BundleCorruptError(f"{path} is not UTF-8 text; rebuild the bundle") from None


def _locate(root: Path, name: str, rebuild: str | None) -> Path:
    """The regular file ``root/name``, which may be a link only to a place inside ``root``."""
    fix = f"rebuild: {rebuild}" if rebuild else "rebuild the bundle"
    try:
        real = (root / name).resolve(strict=True)
        inside = real.is_relative_to(root.resolve())
        regular = real.is_file()
    except PermissionError as error:
        raise _unreadable(error, root, root / name) from None
    except (OSError, ValueError, RuntimeError):  # absent, unspeakable name, ring of links
        raise BundleCorruptError(f"{root} lacks its file {name!r}; {fix}") from None
    if not inside:
        raise BundleCorruptError(f"{name!r} in {root} leads out of the bundle, to {real}; {fix}")
    if not regular:
        raise BundleCorruptError(f"{name!r} in {root} is not a regular file; {fix}")
    return root / name


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        fix = _way_in(error, path.parent)
        what = f"cannot look into {path.parent}: {error.strerror}"
        raise BundleMissingError(f"{what}; {fix}") from None


def _unreadable(error: OSError, root: Path, path: Path) -> BundleCorruptError:
    return BundleCorruptError(f"cannot read {path}: {error.strerror}; {_way_in(error, root)}")


def _way_in(error: OSError, root: Path) -> str:
    if isinstance(error, PermissionError):
        return f"its owner can let others read it: chmod -R a+rX {shlex.quote(str(root))}"
    return "name another bundle, or copy it to another disk"


def _exists(path: Path) -> bool:
    return os.path.lexists(path)


def sha256_of(path: Path) -> str:
    """The hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal_engine(folder: Path, manifest: EngineManifest) -> EngineManifest:
    """List and hash the files in ``folder``, write its manifest, and return it with that list.

    May be called again, with a manifest that says more.
    """
    names = set(_files_below(folder)) - {ENGINE_FILE}
    sealed = dataclasses.replace(manifest, files=_describe(folder, names))
    (folder / ENGINE_FILE).write_text(dump(sealed), encoding="utf-8")
    return sealed


def seal_bundle(folder: Path, manifest: BundleManifest) -> BundleManifest:
    """As ``seal_engine``, for the bundle's own files and the manifests of its sealed engines."""
    names = {manifest.tokenizer, f"{TARGET}/{ENGINE_FILE}"}
    if manifest.chat_template is not None:
        names.add(manifest.chat_template)
    if manifest.has_draft:
        names.add(f"{DRAFT}/{ENGINE_FILE}")
    sealed = dataclasses.replace(manifest, files=_describe(folder, names))
    (folder / BUNDLE_FILE).write_text(dump(sealed), encoding="utf-8")
    return sealed


def _files_below(folder: Path) -> list[str]:
    return [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]


def _describe(folder: Path, names: Iterable[str]) -> tuple[FileEntry, ...]:
    paths = [(name, folder / name) for name in sorted(names) if name != BUNDLE_FILE]
    return tuple(FileEntry(n, path.stat().st_size, sha256_of(path)) for n, path in paths)
