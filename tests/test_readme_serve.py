"""The README's section on the server, as it stands, with one server and tiny models."""

from __future__ import annotations

import json
from pathlib import Path

from runtime.bench.serving.server import server_of
from tests.helpers.readme import SERVE_SECTION, readme_blocks, run, workspace
from tests.helpers.tiny_bundle import tiny_bundle

BLOCKS = [block for block in readme_blocks() if block.section == SERVE_SECTION]
COMMANDS = [
    command for block in BLOCKS if block.language != "python" for command in block.commands()
]
ADDRESS = "http://127.0.0.1:8000"
SERVE = "python -m runtime serve "


def test_the_server_answers_what_the_readme_asks_it(tmp_path: Path) -> None:
    place = workspace(tmp_path, {"demo": tiny_bundle().path})
    install, first, *others = COMMANDS
    assert install.startswith("pip install ")  # which this environment has behind it
    assert first.startswith(SERVE)
    given = first.removeprefix(SERVE).replace("engines/", str(place / "engines") + "/").split()
    with server_of([*given, "--mode", "sd"]) as server:
        printed = [run(place, command.replace(ADDRESS, server.url)) for command in others]
        for block in BLOCKS:
            if block.language == "python":
                (place / "shown.py").write_text(block.text.replace(ADDRESS, server.url))
                assert "tokens of context" in run(place, "python shown.py")
    asked, load = printed
    assert json.loads(asked)["choices"][0]["message"]["role"] == "assistant"
    assert "TTFT p50" in load
