"""What the README shows works as it stands: commands, Python, and the files it points to.

T17: a quick start that prints garbage. Polygraphy and the server have files of their own.
"""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from export.build.build import build
from export.build.options import BuildOptions
from export.fetch import fetch
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound, LogHeader, LogWriter
from runtime.trace.chrome import write_trace
from runtime.trace.timeline import Timeline
from tests.helpers.checkpoints import make_draft, make_llama
from tests.helpers.readme import (
    ELSEWHERE,
    README,
    ROOT,
    Block,
    blocks,
    readme_blocks,
    run,
    workspace,
)
from tests.helpers.session_folder import session_folder
from tests.helpers.tiny_bundle import tiny_bundle

BLOCKS = [block for block in readme_blocks() if block.section not in ELSEWHERE]
PROGRAMS = {".", "echo", "export", "git", "make", "pip", "polygraphy", "python"}
PICTURES = {
    "target | verify": "two lanes of time",
    "mode tokens/s": "what make demo prints",
}
"""Blocks that are no commands, by their first two or three words."""
SKIPPED = {
    "make demo": "fetches 98 MB; the commands behind it run here one by one",
    ". .venv/bin/activate": "the environment is the one that runs the tests",
    "pip install --editable '.[grammar]'": "the environment that runs the tests has it",
    "python -m export distill": "trains for an hour; tests/export/distill trains for seconds",
}
"""Commands that do not run here, by how they begin."""
ON_GPU = "--device cuda"


def is_picture(block: Block) -> bool:
    return " ".join(block.text.split()).startswith(tuple(PICTURES))


COMMANDS = [
    command
    for block in BLOCKS
    if block.language != "python" and not is_picture(block)
    for command in block.commands()
]
PYTHON = [block for block in BLOCKS if block.language == "python"]


def needs(command: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.torch] if "verify engines" in command or "--verify" in command else []


CASES = [
    pytest.param(command, id=command[:60], marks=needs(command))
    for command in COMMANDS
    if not command.startswith(tuple(SKIPPED)) and ON_GPU not in command
]
GPU_COMMANDS = [command for command in COMMANDS if ON_GPU in command]


def write_outcomes(path: Path) -> None:
    header = LogHeader("demo", "ssd", num_draft=2, num_ranks=4, num_branches=4, fallback="zero")
    with LogWriter(path, header) as log:
        for accepted in (0, 1, 2, 2, 0, 1):
            log.add(LoggedRound(0, ProposalKind.HIT, 2, accepted, 0, True))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make_llama(tmp_path / "tiny", hidden=64, intermediate=128, max_position=4096)
    make_draft(tmp_path / "tiny-draft", hidden=64, intermediate=128, max_position=4096)
    # Each command runs alone; these are what the ones before it wrote.
    timeline = Timeline()
    timeline.span("target", "verify", 0.0, 0.01)
    write_trace(timeline, tmp_path / "trace.json", {})
    write_outcomes(tmp_path / "outcomes.jsonl")
    return workspace(tmp_path, {"demo": tiny_bundle().path})


def stand_in(command: str) -> str:
    """The command with our checkpoints, and the first of each choice that is shown."""
    for role, name in (("target", "tiny"), ("draft", "tiny-draft")):
        command = re.sub(rf"--{role} [\w|]+\|\w+", f"--{role} {name}", command)
    command = command.replace("smollm2-135m", "tiny")  # which would be fetched
    return re.sub(r"(--[\w-]+) (\w+)(\|\w+)+", r"\1 \2", command)


def test_every_block_is_a_program_python_or_a_known_picture() -> None:
    """A block that nobody runs must be one that nobody can."""
    assert len(BLOCKS) >= 6
    for block in BLOCKS:
        if block.language == "python" or is_picture(block):
            continue
        assert block.language in ("", "bash", "sh"), f"README.md:{block.line}"
        for command in block.commands():
            words = [word for word in command.split() if "=" not in word]
            assert words[0] in PROGRAMS, f"README.md:{block.line}: {command}"


def test_no_exception_outlives_what_it_excuses() -> None:
    for start in SKIPPED:
        assert any(command.startswith(start) for command in COMMANDS), start
    shown = [" ".join(block.text.split()) for block in BLOCKS]
    for start in PICTURES:
        assert any(text.startswith(start) for text in shown), start


@pytest.mark.parametrize("command", CASES)
def test_the_command_works_as_shown(place: Path, command: str) -> None:
    printed = run(place, stand_in(command))
    if "--json" in shlex.split(command.partition("#")[0].replace("'", "")):
        assert json.loads(printed)
    else:
        assert printed.strip()
    if "export build" in command:
        assert (place / "engines/bundles/mine/bundle.json").is_file()


@pytest.mark.parametrize("command", GPU_COMMANDS)
def test_without_a_gpu_its_commands_say_what_is_missing(place: Path, command: str) -> None:
    """They are parsed and the bundle is read; what they then ask for is not here."""
    printed = run(place, f"{command.partition('#')[0]} 2>&1 || test $? -eq 2")
    assert re.search(r"cuda|CUDA|onnxruntime-gpu|GPU", printed)


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"line {block.line}")
def test_the_python_block_runs(place: Path, block: Block) -> None:
    (place / "shown.py").write_text(block.text, encoding="utf-8")
    printed = run(place, "python shown.py")
    assert re.search(r"\d", printed), "no figures in what it printed"


def test_what_the_readme_points_to_is_there() -> None:
    text = README.read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    links = [link for link in links if link and "://" not in link]
    files = re.findall(r"(?<![\w/.-])((?:[\w-]+/)*[\w-]+\.(?:md|py|toml|yml|sh))\b", text)
    anchors = re.findall(r"\]\(#([^)]+)\)", text)
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    assert files, "the README names its companions"
    for name in [*links, *files]:
        assert (ROOT / name).exists(), f"README.md points to {name}"
    assert set(anchors) <= headings


@cache
def demo_bundle() -> Path:
    """The pair of make demo, with its own options."""
    fetch("smollm2-135m")
    shown = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    line = next(line for line in shown.splitlines() if "export build" in line)
    words = shlex.split(line)
    assert words[words.index("--target") + 1] == "smollm2-135m"
    options = {name: words[words.index(f"--{name}") + 1] for name in ("num-draft", "max-branches")}
    built = BuildOptions(
        target="smollm2-135m",
        draft="smollm2-135m-draft",
        num_draft=int(options["num-draft"]),
        max_branches=int(options["max-branches"]),
        out=session_folder("demo-bundle") / "demo",
    )
    return build(built).bundle.path


@pytest.mark.real
@pytest.mark.timeout(900)
def test_the_quick_start_answers_the_question(tmp_path: Path) -> None:
    """T17: it once printed garbage."""
    bundle = demo_bundle()
    place = workspace(tmp_path, {"demo": bundle})
    command = next(command for command in COMMANDS if "Name three rivers" in command)
    printed = run(place, command)
    assert "river" in printed.lower()
    assert "Amazon" in printed


SAMPLE = """\
# One

Text.

    python -m a  # why
    python -m b \\
        --c

- a list

```python
x = 1
```

## Two

not    a block
    nor this

    last
"""


def test_blocks_are_read_as_markdown_shows_them() -> None:
    found = blocks(SAMPLE)
    assert [(block.section, block.language, block.line) for block in found] == [
        ("One", "", 5),
        ("One", "python", 11),
        ("Two", "", 20),
    ]
    assert found[0].commands() == ["python -m a", "python -m b --c"]
    assert found[1].text == "x = 1\n"
    assert found[2].text == "last\n"
