"""The systemd units: systemd reads them, our parser reads what they start."""

from __future__ import annotations

import shlex
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from runtime.cli.entry import main
from runtime.serve.config import ServeConfig
from runtime.serve.service import GRACE_S
from tests.runtime.deploy.deployed import DEPLOY, LONGEST_STOP_S, page, served_as

NAMES = ["ssd-trt.service", "ssd-trt@.service"]
PYTHON = "/opt/ssd-trt/bin/python"
MOST_EXPOSED = 20
"""Of systemd's own score for what a unit may do, 0 to 100 (none of its restrictions: 96)."""


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / name)
    return parser


def env_file() -> dict[str, str]:
    lines = (DEPLOY / "ssd-trt.env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.systemd
@pytest.mark.parametrize("name", NAMES)
def test_systemd_understands_it_and_finds_it_closed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name.replace("@", "@a")
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert PYTHON in text
    path.write_text(text.replace(PYTHON, sys.executable))  # which has to be there
    for words in (
        ["verify", "--recursive-errors=no"],
        ["security", "--offline=yes", f"--threshold={MOST_EXPOSED}"],
    ):
        done = subprocess.run(
            ["systemd-analyze", *words, str(path)], capture_output=True, text=True, check=False
        )
        said = [line for line in done.stderr.splitlines() if path.name in line]
        assert (done.returncode, said) == (0, []), done.stdout[-1000:] + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_it_starts_the_server_with_the_options_of_its_file(name: str) -> None:
    given = env_file()
    start = unit(name)["Service"]["ExecStart"]
    line = start.replace("${BUNDLE}", shlex.quote(given["BUNDLE"]))
    line = line.replace("$OPTIONS", given["OPTIONS"])
    python, dash, module, *words = shlex.split(line)
    assert [python, dash, module] == [PYTHON, "-m", "runtime"]
    args = served_as(words)
    assert args.host == "127.0.0.1", "the open network is the proxy's"
    assert str(args.bundle) == given["BUNDLE"]
    assert "SSD_API_KEY" not in given, "a key that everybody knows"


@pytest.mark.parametrize("name", NAMES)
def test_it_waits_for_what_runs(name: str) -> None:
    """SIGKILL in the middle of an answer, though the server was still finishing it."""
    service, config = unit(name)["Service"], ServeConfig(model_name="any")
    assert service["Type"] == "notify"
    assert service["KillSignal"] == "SIGTERM"
    assert int(service["TimeoutStopSec"]) == LONGEST_STOP_S
    assert config.drain_timeout_s + 2 * GRACE_S < LONGEST_STOP_S  # also uvicorn's own


def test_a_bundle_that_is_not_there_is_not_tried_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["serve", "--bundle", str(tmp_path / "none"), "--port", "0"]
    assert main(words) == int(unit(NAMES[0])["Service"]["RestartPreventExitStatus"])
    assert "no bundle at" in capsys.readouterr().err


def test_the_template_is_the_unit_with_a_name() -> None:
    plain, template = ((DEPLOY / name).read_text(encoding="utf-8") for name in NAMES)
    *_, plain = plain.partition("[Unit]")
    *_, template = template.partition("[Unit]")
    for named, unnamed in (
        ("server %i", "server"), ("/%i.env", "/ssd-trt.env"), ("ssd-trt-%i", "ssd-trt"),
    ):  # fmt: skip
        template = template.replace(named, unnamed)
    assert template == plain


@pytest.mark.parametrize("name", NAMES)
def test_it_collects_nothing_for_others(name: str) -> None:
    """ONNX Runtime's wheels do unless they are told not to."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    assert "\nEnvironment=ORT_DISABLE_TELEMETRY=1\n" in text


def test_the_page_and_the_units_say_the_same() -> None:
    assert f"TimeoutStopSec={LONGEST_STOP_S}" in page()
    watched = unit(NAMES[0])["Service"]["WatchdogSec"]
    assert watched == "60"
    assert "for a minute (`WatchdogSec`)" in page()
