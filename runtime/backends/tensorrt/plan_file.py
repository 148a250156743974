"""The file of a compiled engine, read in place and checked against its manifest."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engines.errors import BundleCorruptError
from engines.manifest import EngineManifest, FileEntry, PlanFacts


def facts_of(manifest: EngineManifest, folder: Path) -> PlanFacts:
    """Raises BundleCorruptError for an engine that was not compiled."""
    if manifest.plan is None:
        raise BundleCorruptError(
            f"{folder} holds a graph and no compiled engine; build the bundle with "
            "--backend tensorrt or tensorrt-rtx"
        )
    return manifest.plan


def entry_of(manifest: EngineManifest, folder: Path) -> FileEntry:
    """The manifest's line about the plan's file. Raises BundleCorruptError without one."""
    plan = facts_of(manifest, folder)
    for file in manifest.files:
        if file.path == plan.file:
            return file
    raise BundleCorruptError(f"the manifest of {folder} does not list {plan.file}; rebuild it")


@contextmanager
def open_plan(folder: Path, manifest: EngineManifest) -> Iterator[memoryview]:
    """The plan's bytes, mapped and not copied: the hash and TensorRT read the same pages.

    Raises BundleCorruptError when the file cannot be read or is not the one that was built.
    """
    entry = entry_of(manifest, folder)
    path = folder / entry.path
    with memoryview(_mapped(path)) as plan:
        if hashlib.sha256(plan).hexdigest() != entry.sha256:
            raise BundleCorruptError(
                f"{path} is not the engine that was built (its sha256 differs); copy the bundle "
                "again or rebuild it"
            )
        yield plan


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise BundleCorruptError(
            f"cannot read {path}: {error}; copy the bundle again or rebuild it"
        ) from error
