"""Checkpoints on disk for the tests of pairs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from export.checkpoint.api import Checkpoint, open_checkpoint
from tests.helpers.checkpoints import make_llama


def target_in(folder: Path, **options: Any) -> Checkpoint:
    return open_checkpoint(make_llama(folder / "target", **options))


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder
