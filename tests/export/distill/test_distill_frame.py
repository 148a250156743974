from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import CheckpointError
from export.checkpoint.api import open_checkpoint
from export.distill.chat import frame_of
from tests.helpers.checkpoints import make_llama


@pytest.mark.parametrize(
    "template", ["{{ raise_exception('no') }}", "{{ 1/0 }}", "{{ none + 'x' }}", "{% for %}"]
)
def test_a_template_that_fails_in_any_way_asks_for_data(tmp_path: Path, template: str) -> None:
    folder = make_llama(tmp_path / "m")
    (folder / "chat_template.jinja").write_text(template)
    with pytest.raises(CheckpointError, match=r"chat template.*--data"):
        frame_of(open_checkpoint(folder))
