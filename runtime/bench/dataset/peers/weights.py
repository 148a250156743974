"""Which weights peers run: those named, else those that the bundle was built from."""

from __future__ import annotations

import shlex
from pathlib import Path

from engines.bundle import Bundle
from engines.cachedir import cache_dir
from engines.errors import UsageError
from runtime.bench.dataset.peers.api import WEIGHTS_OPTION


def find_weights(bundle: Bundle, given: Path | None) -> Path:
    """A file or folder that is there. Raises UsageError naming the option."""
    if given is None:
        return _of_bundle(bundle)
    path = _existing(given)
    if path is None:
        raise UsageError(
            f"{WEIGHTS_OPTION} {given} is not there; name a .gguf file or a checkpoint's folder"
        )
    return path


def _existing(path: Path) -> Path | None:
    try:
        expanded = path.expanduser()
        return expanded if expanded.exists() else None
    # Too long a name; a zero byte in it; "~" of a user that is none.
    except (OSError, ValueError, RuntimeError):
        return None


def _of_bundle(bundle: Bundle) -> Path:
    """What its build command calls the target: a path, or a name in the cache of checkpoints."""
    try:
        words = shlex.split(bundle.manifest.rebuild)
    except ValueError:  # a quote that nobody closed: the manifest is a file that anyone may edit
        words = []
    name = words[words.index("--target") + 1] if "--target" in words[:-1] else ""
    if name and (path := _existing(Path(name))) is not None:
        return path
    kept = sorted((cache_dir() / name).glob("*.gguf")) if name and "/" not in name else []
    if len(kept) == 1:
        return kept[0]
    source = bundle.target.source.name
    raise UsageError(
        f"the checkpoint of {bundle.path} ({name or source}) is not on this machine where its "
        f"build command says; name a copy with {WEIGHTS_OPTION}"
    )
