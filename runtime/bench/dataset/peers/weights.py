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
    path = _of_bundle(bundle) if given is None else given.expanduser()
    if not path.exists():
        raise UsageError(
            f"{WEIGHTS_OPTION} {path} is not there; name a .gguf file or a checkpoint's folder"
        )
    return path


def _of_bundle(bundle: Bundle) -> Path:
    """What its build command calls the target: a path, or a name in the cache of checkpoints."""
    words = shlex.split(bundle.manifest.rebuild)
    name = words[words.index("--target") + 1] if "--target" in words[:-1] else ""
    if name and (path := Path(name).expanduser()).exists():
        return path
    kept = sorted((cache_dir() / name).glob("*.gguf")) if name and "/" not in name else []
    if len(kept) == 1:
        return kept[0]
    source = bundle.target.source.name
    raise UsageError(
        f"the checkpoint of {bundle.path} ({name or source}) is not on this machine where its "
        f"build command says; name a copy with {WEIGHTS_OPTION}"
    )
