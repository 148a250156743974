"""The images' files say nothing that is not so: they cannot be built here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.helpers.readme import ROOT
from tests.runtime.deploy.deployed import DEPLOY, LONGEST_STOP_S, served_as
from tests.runtime.serve.house import House

NAMES = ["cpu.Dockerfile", "tensorrt.Dockerfile"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NEEDED = {
    "cpu.Dockerfile": {"cpu", "serve"},
    "tensorrt.Dockerfile": {"tensorrt", "cuda", "serve", "export"},
}
Instruction = tuple[str, str]


def instructions(name: str) -> list[Instruction]:
    """Each with its arguments, in order; a continued line is one."""
    text = (DEPLOY / name).read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = lines.replace("\\\n", " ").splitlines()
    pairs = (line.split(maxsplit=1) for line in joined if line.strip())
    return [(word, " ".join(rest.split())) for word, rest in pairs]


def only(name: str, word: str) -> str:
    found = [rest for each, rest in instructions(name) if each == word]
    assert len(found) == 1, f"{name} has {len(found)} {word}"
    return found[0]


def copied(name: str) -> set[str]:
    """From the repository."""
    sources: set[str] = set()
    for word, rest in instructions(name):
        if word == "COPY" and "--from" not in rest:
            sources.update(rest.split()[:-1])
    return sources


def environment(name: str) -> dict[str, str]:
    return dict(each.split("=", 1) for each in only(name, "ENV").split())


def health_command(name: str) -> list[str]:
    words: list[str] = json.loads(only(name, "HEALTHCHECK").partition("CMD ")[2])
    return words


@pytest.mark.parametrize("name", NAMES)
def test_a_linter_finds_nothing(name: str) -> None:
    linter = Path(sysconfig.get_path("scripts")) / "hadolint"
    done = subprocess.run(
        [linter, DEPLOY / name], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_what_is_copied_is_there_and_sent_and_enough_to_install(name: str) -> None:
    sources = copied(name)
    ignored = (DEPLOY / f"{name}.dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in ignored if line and not line.startswith("#")]
    assert patterns[0] == "*", "all that is not named stays out"
    assert sources == {line[1:] for line in patterns if line.startswith("!")}
    for source in sources:
        assert (ROOT / source).exists()
    assert patterns[-3:] == ["engines/bundles", "**/__pycache__", "**/*.egg-info"]
    packages = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    needed = {each.rstrip("*") for each in packages} | {"pyproject.toml"}
    needed |= {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert needed == sources


@pytest.mark.parametrize("name", NAMES)
def test_the_extras_exist_and_are_those_that_serving_takes(name: str) -> None:
    [extras] = [rest for word, rest in instructions(name) if rest.startswith("EXTRAS=")]
    named = set(extras.removeprefix("EXTRAS=").split(","))
    assert named <= set(PROJECT["project"]["optional-dependencies"])
    assert named >= NEEDED[name]
    assert not {"cpu", "gpu"} <= named, "they overwrite each other"
    assert any('pip install ".[${EXTRAS}]"' in rest for _, rest in instructions(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_command_is_one_that_the_server_takes_at_the_port_that_is_asked(name: str) -> None:
    entry, words = json.loads(only(name, "ENTRYPOINT")), json.loads(only(name, "CMD"))
    assert entry == ["python", "-m", "runtime"], "a shell would keep the signal for itself"
    args = served_as(words)
    assert (args.host, str(args.bundle)) == ("0.0.0.0", "/bundle")
    assert only(name, "EXPOSE") == str(args.port)
    assert f"'127.0.0.1', {args.port}" in health_command(name)[-1]
    assert "/bundle" in [rest.split()[-1] for word, rest in instructions(name) if word == "COPY"]


@contextmanager
def answering(status: int) -> Iterator[tuple[int, list[str]]]:
    """A server's port, and the paths it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], asked
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("status", "is_well"), [(200, True), (503, False)])
def test_the_health_check_tells_a_server_that_serves(name: str, status: int, is_well: bool) -> None:
    python, *words = health_command(name)
    assert python == "python"
    with answering(status) as (port, asked):
        words[-1] = words[-1].replace("8000", str(port))
        done = subprocess.run([sys.executable, *words], check=False)
    assert (done.returncode == 0) == is_well
    [path] = asked
    assert path in House().app.openapi()["paths"]
    assert subprocess.run([sys.executable, *words], check=False, stderr=-3).returncode != 0


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_as_nobody_special_and_writes_to_one_folder(name: str) -> None:
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", only(name, "USER"))
    cache = environment(name)["SSD_TRT_CACHE"]
    assert only(name, "VOLUME") == cache
    assert any(
        f"install -d -o ssd -g ssd -m 0750 {cache}" in rest for _, rest in instructions(name)
    )
    assert environment(name)["ORT_DISABLE_TELEMETRY"] == "1"
    assert only(name, "STOPSIGNAL") == "SIGTERM"
    assert f"--stop-timeout {LONGEST_STOP_S}" in (DEPLOY / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_last_stage_is_the_one_without_a_bundle(name: str) -> None:
    """It is what is built where no stage is named."""
    stages = [rest for word, rest in instructions(name) if word == "FROM"]
    assert stages[-2:] == ["base AS with-bundle", "base AS server"]
    assert not any("latest" in rest for _, rest in instructions(name))


def test_both_images_have_the_same_manners() -> None:
    """They differ in their base, what they install and how long they may take to start."""
    words = ("ENV", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "ENTRYPOINT", "CMD")
    first, second = ([only(name, word) for word in words] for name in NAMES)
    assert first == second
    assert health_command(NAMES[0]) == health_command(NAMES[1])
    ignores = {(DEPLOY / f"{name}.dockerignore").read_bytes() for name in NAMES}
    assert len(ignores) == 1
