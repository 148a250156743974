"""README's section on C and C++: its programs compile and run as they stand, by its commands."""

from __future__ import annotations

import re
from pathlib import Path

from tests.helpers.readme import EMBED_SECTION, readme_blocks, run, workspace

INSTALL = "pip install"
BLOCKS = [block for block in readme_blocks() if block.section == EMBED_SECTION]


def test_the_programs_of_the_section_run(bundle: Path, tmp_path: Path) -> None:
    place = workspace(tmp_path, {"demo": bundle})
    commands = []
    for block in BLOCKS:
        named = re.match(r"(?:/\*|//|#) (\S+\.\w+)", block.text)
        if named:
            (place / named[1]).write_text(block.text)
        else:
            commands += [each for each in block.commands() if not each.startswith(INSTALL)]
    assert any(each.startswith("gcc") for each in commands)
    told = run(place, "\n".join(commands))
    assert "ssd-trt" in told  # what embed says
    assert len(told.splitlines()[-1]) > 0
