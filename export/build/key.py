"""The build key: equal keys mean that a build would give the same bundle, so it can be skipped."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from engines.codec import encode
from engines.manifest import SCHEMA
from export.build.compiled import Compiler
from export.build.options import BuildOptions

_PACKAGES = ("onnx", "onnx-ir", "numpy")
_ROOT = Path(__file__).resolve().parents[2]
_SOURCES = (
    "engines",
    "plugins",
    "export/build",
    "export/checkpoint",
    "export/graph",
    "export/tensorrt",
)


def builder_versions(compiler: Compiler | None = None) -> dict[str, str]:
    """What shapes an engine besides its checkpoint: packages, and the code that builds it."""
    versions = {name: _version(name) for name in _PACKAGES} | {"ssd-trt source": source_hash()}
    return versions if compiler is None else versions | {"compiler": compiler.identity}


def build_key(
    options: BuildOptions,
    fingerprints: Iterable[str | None],
    versions: dict[str, str],
    compiler: Compiler | None = None,
) -> str:
    """SHA-256 (hex) over everything that decides a bundle's content.

    Where the bundle goes and how its checkpoints were named do not count.
    """
    facts = {
        "schema": SCHEMA,
        "backend": options.backend,
        "precision": options.precision,
        "block": options.scale_block,
        "limits": encode(options.limits),
        "checkpoints": list(fingerprints),
        "versions": versions,
        "compiler": encode(compiler),
        "keep_onnx": options.keep_onnx,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def source_hash() -> str:
    """One hash over the source files that decide what a bundle holds."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(_ROOT).as_posix().encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
