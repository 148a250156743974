"""Every command of the README's section on TensorRT and polygraphy, run on tiny bundles.

The package is made known to polygraphy as an installation would do it: by the entry points of
pyproject.toml, written where Python looks for installed packages.
"""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from engines.bundle import open_bundle
from plugins.verify.tensorrt import SIGNATURE
from tests.helpers.checkpoints import make_draft, make_llama
from tests.helpers.compiled_bundle import compiled_bundle
from tests.helpers.readme import POLYGRAPHY_SECTION, ROOT, readme_blocks, run, workspace
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.polygraphy

ON_HOST_MEMORY = ROOT / "tests/export/tensorrt/polygraphy_process.py"
"""polygraphy's command line where a GPU need not be."""

COMMANDS = [
    (setting, command)
    for block in readme_blocks()
    if block.section == POLYGRAPHY_SECTION
    for setting in [[c for c in block.commands() if c.startswith("export ")]]
    for command in block.commands()
    if not command.startswith("export ")
]
ON_A_GPU = "polygraphy run verify.plan"
SKIPPED = {
    "pip install": "needs the network; the entry points stand in for the installation",
    ON_A_GPU: "needs the GPU of the plan; a test of its own runs it on host memory",
}
"""By the command's first words."""


def needs(command: str) -> list[pytest.MarkDecorator]:
    """What a command needs beyond polygraphy, by what it names."""
    marks = []
    if "-rtx" in command or "plan" in command:
        marks.append(pytest.mark.rtx)
    if "export verify" in command:
        marks.append(pytest.mark.torch)
    return marks


CASES = [
    pytest.param(setting, command, id=command[:70], marks=needs(command))
    for setting, command in COMMANDS
    if not command.startswith(tuple(SKIPPED))
]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A clone's look: the bundles that the commands name, and checkpoints to build from."""
    sizes = {"hidden": 64, "intermediate": 128, "max_position": 2048}
    make_llama(tmp_path / "tiny", tied=True, seed=3, **sizes)
    make_draft(tmp_path / "tiny-draft", **sizes)
    return workspace(tmp_path, {"demo": tiny_bundle(max_len=512).path})


def run_as_installed(place: Path, setting: list[str], command: str) -> str:
    """Run a command where Python finds ssd-trt's entry points; what it printed to stdout."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = place / "site" / f"ssd_trt-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in points.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (info / "METADATA").write_text(f"Name: ssd-trt\nVersion: {project['version']}\n")
    return run(place, "\n".join([*setting, command]), PYTHONPATH=str(info.parent))


def test_the_section_is_found_with_all_kinds_of_commands() -> None:
    shown = {" ".join(command.split()[:2]) for _, command in COMMANDS}
    assert shown == {
        "pip install",
        "python -m",
        "polygraphy inspect",
        "polygraphy run",
        "polygraphy convert",
    }
    assert len(CASES) >= 8


@pytest.mark.parametrize(("setting", "command"), CASES)
def test_the_command_works_as_shown(place: Path, setting: list[str], command: str) -> None:
    command = command.replace("smollm2-135m", "tiny")  # which would be fetched
    if "demo-rtx" in command and "export build" not in command:
        (place / "engines/bundles/demo-rtx").symlink_to(compiled_bundle("fp16").path)
    CHECKS[" ".join(command.split()[:4])](run_as_installed(place, setting, command), place)


@pytest.mark.rtx
def test_the_converted_plan_runs_as_shown(place: Path) -> None:
    """Up to the hardware: the plan's layer must reach something that runs it."""
    bundle = compiled_bundle("fp16").path
    (place / "engines/bundles/demo-rtx").symlink_to(bundle)
    printed = ""
    for setting, command in COMMANDS:
        if command.startswith("polygraphy convert"):
            run_as_installed(place, setting, command)
        elif command.startswith(ON_A_GPU):
            stand_in = shlex.join([sys.executable, str(ON_HOST_MEMORY), str(bundle), "verify.plan"])
            shown = command.replace("polygraphy", stand_in, 1)
            printed = run_as_installed(place, setting, shown)
    assert printed.count("ssd::Verify@1 ran on [1, 5, 320]\n") == 1
    assert "PASSED | Output: next is valid" in printed


def check_build(_printed: str, place: Path) -> None:
    plan = open_bundle(place / "engines/bundles/demo-rtx").target.plan
    assert plan is not None
    assert plan.capabilities == ("8.9", "12.0")


def check_verify(printed: str, _place: Path) -> None:
    assert printed.endswith("with at most 0.01 nats\n")
    assert "passed: " in printed


def check_bench(printed: str, _place: Path) -> None:
    if printed.startswith("{"):
        [engine] = json.loads(printed)["engines"]
        assert [call["kind"] for call in engine["calls"]] == ["root", "branch", "prompt"]
    else:
        assert printed.count("\nprompt ") == 2, "a prompt chunk of each engine"


def check_inspect(printed: str, _place: Path) -> None:
    assert "7 Graph Output(s)" in printed


def check_run(printed: str, _place: Path) -> None:
    assert "PASSED" in printed


def check_convert(_printed: str, place: Path) -> None:
    plan = (place / "verify.plan").read_bytes()
    assert SIGNATURE.digest.encode() in plan, "the function was built, not our layer"


CHECKS = {
    "python -m export build": check_build,
    "python -m export verify": check_verify,
    "python -m export bench": check_bench,
    "polygraphy inspect model engines/bundles/demo/target/model.onnx": check_inspect,
    "polygraphy run engines/bundles/demo/target/model.onnx --onnxrt": check_run,
    "polygraphy run engines/bundles/demo-rtx/draft/model.onnx --onnxrt": check_run,
    "polygraphy convert engines/bundles/demo-rtx/target/model.onnx --convert-to": check_convert,
}
"""By the first four words."""
