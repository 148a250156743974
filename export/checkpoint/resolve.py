"""From what a user types for a checkpoint (path, known name, hub id) to a path on this machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from engines.errors import CheckpointError, UnsupportedModelError
from export import fetch
from export.checkpoint.api import GGUF_SUFFIX
from export.checkpoint.folder import DESCRIPTIONS
from export.packages import require

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(name: str) -> Path:
    """The folder or .gguf file that ``name`` stands for, to be opened by ``open_checkpoint``.

    In this order: a default checkpoint's name, a path that exists, a model hub's ORG/NAME (its
    description, tokenizer and weights are downloaded, code and pickles never). Raises
    CheckpointError naming the command that helps, and MissingDependencyError.
    """
    if name in fetch.KNOWN:
        path = fetch.location(name)
        if not path.exists():
            raise CheckpointError(
                f"{name} is not on this machine yet; run: {fetch.fetch_command(name)}"
            )
        return path
    path = Path(name).expanduser()
    if name and path.exists():
        return path
    if _HUB_ID.fullmatch(name):
        return _from_hub(name)
    raise CheckpointError(
        f"no checkpoint {name!r}: not a path on this machine, not a default checkpoint "
        f"({', '.join(fetch.KNOWN)}), not a hub id ORG/NAME"
    )


def _from_hub(hub_id: str) -> Path:
    purpose = f"fetching {hub_id}, which is no path on this machine,"
    huggingface_hub = require("huggingface_hub", "huggingface-hub", "hub", purpose)
    try:
        folder = _snapshot(hub_id, [*DESCRIPTIONS, "model*.safetensors"])
        if any(folder.glob("model*.safetensors")):
            return folder
        only = _only_gguf(hub_id, huggingface_hub.HfApi().list_repo_files(hub_id))
        return _snapshot(hub_id, [only]) / only
    except CheckpointError:
        raise
    except Exception as error:  # the client and its HTTP library share no base class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"cannot fetch {hub_id} from the model hub ({reason}); "
            "check the name, the network and, for a gated model, your login"
        ) from None


def _snapshot(hub_id: str, patterns: list[str]) -> Path:
    import huggingface_hub

    return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=patterns))


def _only_gguf(hub_id: str, files: Iterable[str]) -> str:
    """The one GGUF file of a repository without safetensors; several quantisations are a choice
    (and a download) that only the user can make."""
    found = [file for file in files if file.endswith(GGUF_SUFFIX)]
    if len(found) == 1:
        return found[0]
    if found:
        raise CheckpointError(
            f"{hub_id} holds {len(found)} {GGUF_SUFFIX} files; download one and give its path"
        )
    raise UnsupportedModelError(
        f"{hub_id} holds neither model*.safetensors nor {GGUF_SUFFIX} files; "
        "pickled weights are never opened, since that can run code"
    )
