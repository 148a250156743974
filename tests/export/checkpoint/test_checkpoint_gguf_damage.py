from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import CheckpointError
from export.checkpoint.api import open_checkpoint
from tests.helpers.checkpoints import make_gguf


def test_a_count_beyond_the_file_is_refused_at_once(tmp_path: Path) -> None:
    """Past the end the library read nothing, as often as the damaged count said: 2**56 times."""
    path = make_gguf(tmp_path)
    data = bytearray(path.read_bytes())
    # Key, type (array = 9), element type, then the count as 8 bytes.
    at = data.index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 4 + 4
    data[at + 7] = 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="not a whole GGUF file"):
        open_checkpoint(path)
