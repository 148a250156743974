"""operations.md: its metrics are exported, its commands run, its messages are said."""

from __future__ import annotations

import ast
import re
import subprocess
from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from export.cli.entry import build_parser as export_parser
from runtime.bench.serving.server import server_of
from runtime.cli.entry import build_parser
from runtime.serve.config import ServeConfig
from runtime.spec.controller.forecasts import ENTER
from runtime.spec.controller.policy import FIRST_PAUSE, LONGEST_PAUSE
from tests.helpers.readme import ROOT, readme_blocks, run, workspace
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.deploy.deployed import (
    DEPLOY,
    LONGEST_STOP_S,
    exported,
    exported_samples,
    page,
    page_blocks,
    page_commands,
    recorded,
    rules,
    served_as,
    words_of,
)

ADDRESS = "http://127.0.0.1:8000"
BUNDLE = "engines/bundles/demo"
COMMANDS = page_commands()
PROGRAMS = {"python", "docker", "systemctl", "install", "curl", "python3", "/opt/ssd-trt/bin/pip"}
IMAGES = {"ssd-trt:cpu", "ssd-trt:tensorrt"}
OF_OTHERS = {"--init", "--stop-timeout", "--cpuset-cpus", "--cpus", "--target", "--target-ms"}
"""Options in its prose that are docker's, or shown in a command."""
CANNOT_RUN = {1: ("doctor",)}
"""What may end otherwise than with 0: what the tiny bundle or this machine is not made for."""
SERVERS = ("python -m runtime serve",)
CLIENTS = ("python -m runtime bench serving", "curl")


def section(title: str) -> str:
    [found] = re.findall(rf"^## {title}$(.*?)(?=^## |\Z)", page(), re.MULTILINE | re.DOTALL)
    return str(found)


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def named_metrics() -> set[str]:
    return set(re.findall(r"(?<![\w:])(?:vllm:|ssd:|ssd_trt:|process_)[\w:]+", page()))


def test_every_metric_that_it_names_is_exported() -> None:
    """An operator looks for it in vain, and an alert over it is silent."""
    families = {name for name, each in exported().items() if name not in each.samples}
    assert len(named_metrics()) > 20
    assert named_metrics() <= exported_samples() | families | recorded()


def test_every_metric_that_is_exported_is_explained() -> None:
    for name, family in exported().items():
        if not name.startswith("process_") and not name.endswith("_created"):
            assert named_metrics() & {name, *family.samples}, f"{name} is not on the page"


def test_every_alert_has_its_line() -> None:
    alerts = [rule["alert"] for rule in rules() if "alert" in rule]
    assert [row[0].strip("`") for row in rows("Alerts")] == alerts


def test_every_file_is_told_of_and_there() -> None:
    named = set(re.findall(r"`([\w@-]+\.(?:Dockerfile|service|env|yml|conf))`", page()))
    files = {path.name for path in DEPLOY.iterdir() if path.is_file()}
    hidden = {"operations.md", *(name for name in files if name.endswith(".dockerignore"))}
    assert named == files - hidden


@cache
def said() -> list[str]:
    """All strings of the runtime and the engines' errors; ``{}`` where a value goes."""
    found = []
    for path in [*(ROOT / "runtime").rglob("*.py"), *(ROOT / "engines").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
                )
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def is_said(words: str) -> bool:
    """``N`` and ``...`` stand for any values."""
    parts = [re.escape(part) for part in re.split(r"\bN\b|\.\.\.", words)]
    return any(re.search(".*".join(parts), text) for text in said())


def test_its_messages_are_those_that_are_said() -> None:
    cells = [cell for row in rows("Messages") for cell in row[:2]]
    first = [row[0] for row in rows("Messages")]
    messages = [each for cell in first for each in re.findall(r"`([^`]+)`", cell)]
    messages += [each for cell in cells[1::2] for each in re.findall(r"`(the [^`]+)`", cell)]
    assert len(messages) > 15
    for message in messages:
        assert message.startswith("error: ") or is_said(message), message


def options_of(parser: ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, _SubParsersAction):
            for each in action.choices.values():
                yield from options_of(each)


def test_its_options_are_ours() -> None:
    ours = set(options_of(build_parser())) | set(options_of(export_parser()))
    prose = "".join(re.findall(r"^(?!    ).*\n", page(), re.MULTILINE))
    named = set(re.findall(r"(?<=`)--[a-z][a-z-]+", prose))
    assert len(named) > 15
    assert named <= ours | OF_OTHERS


def test_its_figures_are_those_of_the_code() -> None:
    config = ServeConfig(model_name="any")
    text = page()
    assert f"`--drain-timeout` ({config.drain_timeout_s:g} s)" in text
    assert f"`--max-waiting` that wait (default {config.max_waiting})" in text
    assert f"`--request-timeout` ({config.request_timeout_s:g} s)" in text
    assert f"from a predicted gain of {ENTER - 1:.0%} on".replace("%", " %") in text
    assert f"pauses of {FIRST_PAUSE} to {LONGEST_PAUSE} rounds" in text


def after_image(command: str) -> list[str] | None:
    """What a container is told to run; None where it is no such command."""
    words = words_of(command)
    if words[:2] != ["docker", "run"]:
        return None
    at = next(place for place, word in enumerate(words) if word in IMAGES)
    arguments = words[at + 1 :]
    if "--entrypoint" in words:
        return [words[words.index("--entrypoint") + 1], *arguments]
    return ["python", "-m", "runtime", *arguments]


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_are_understood(command: str) -> None:
    words = words_of(command)
    assert words[0] in PROGRAMS
    ours = after_image(command) or words
    if ours[:3] == ["python", "-m", "runtime"]:
        args = served_as(ours[3:])
        is_served = ours[3] == "serve"
        if is_served and words[0] == "docker":
            assert args.host == "0.0.0.0"
            assert words[words.index("--stop-timeout") + 1] == str(LONGEST_STOP_S)
            assert "--init" in words
    elif ours[:3] == ["python", "-m", "export"]:
        export_parser().parse_args(ours[3:])
    for word in words:
        if word.startswith("runtime/"):
            assert (ROOT / word).is_file()
    if words[:2] == ["docker", "build"]:
        assert words[-1] == ".", "paths in the files are those of the repository"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workspace(tmp_path_factory.mktemp("clone"), {"demo": tiny_bundle().path})


IN_README = {command for block in readme_blocks() for command in block.commands()}
RUN = [
    command
    for command in COMMANDS
    if command.startswith("python -m")
    and not command.startswith((*SERVERS, *CLIENTS))
    and command not in IN_README  # where it is run
    and "outcomes.jsonl" not in command
]


@pytest.mark.parametrize("command", RUN)
def test_its_commands_work_as_shown(place: Path, command: str) -> None:
    may_fail = any(f" {each} " in command for each in CANNOT_RUN[1])
    printed = run(place, f"{command} || test $? -eq 1" if may_fail else command)
    assert printed.strip()
    if "doctor" in command:
        assert re.search(r"target +weights +[\d.]+ [KM]iB", printed)


@pytest.mark.curl
def test_its_clients_find_what_they_ask_for(place: Path) -> None:
    asking = [command for command in COMMANDS if command.startswith(CLIENTS)]
    with server_of(["--bundle", str(place / BUNDLE), "--mode", "sd"]) as server:
        load, health = (run(place, command.replace(ADDRESS, server.url)) for command in asking)
    assert "TTFT p50" in load
    assert '"status":"ready"' in health


def test_prometheus_is_told_of_the_port_and_the_job_of_the_rules() -> None:
    [block] = page_blocks("yaml")
    config = yaml.safe_load(block.text)
    [job] = config["scrape_configs"]
    assert config["rule_files"] == ["alerts.yml"]
    port = served_as(["serve", "--bundle", "any"]).port
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"]}]
    jobs = {name for rule in rules() for name in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert jobs == {job["job_name"]}


@pytest.mark.systemd
def test_the_drop_in_is_one_that_systemd_takes(tmp_path: Path) -> None:
    [block] = page_blocks("ini")
    unit = tmp_path / "any.service"
    unit.write_text(f"{block.text}ExecStart=/bin/true\n")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr.count(unit.name)) == (0, 0), done.stderr
