"""Builders that meet, and builders that die: with real processes and real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engines.bundle import open_bundle
from engines.errors import UsageError
from export.build.build import build
from export.build.options import BuildOptions
from export.build.writer import BundleWriter, check_replaceable
from tests.engines.tiny_bundles import write_bundle
from tests.export.build.fake_graph import fake_graph
from tests.helpers.checkpoints import make_llama
from tests.helpers.users import as_nobody

ROOT = Path(__file__).resolve().parents[3]

# Runs the build command with a graph that says when the build has begun to write, and then waits
# for the file GO (or a signal).
BUILDER = """
import functools, pathlib, sys, time
import export.build.build as module
from export.cli.entry import main
from tests.export.build.fake_graph import fake_graph
go = pathlib.Path(sys.argv[1])
def before_save(folder):
    print("writing", flush=True)
    while not go.exists():
        time.sleep(0.01)
module._build_graph = lambda: functools.partial(fake_graph, before_save=before_save)
sys.exit(main(["build", *sys.argv[2:]]))
"""


@pytest.fixture
def options(tmp_path: Path) -> BuildOptions:
    target = make_llama(tmp_path / "target", hidden=64)
    return BuildOptions(str(target), out=tmp_path / "out" / "b", max_len=64)


@contextmanager
def builder(options: BuildOptions, *more: str) -> Iterator[subprocess.Popen[str]]:
    go = options.place.parent.parent / "go"
    arguments = options.command().split()[4:]
    process = subprocess.Popen(
        [sys.executable, "-c", BUILDER, str(go), *arguments, *more],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str], words: str) -> None:
    """Read the builder's lines until one holds ``words``."""
    stream = process.stdout if words == "writing" else process.stderr
    assert stream is not None
    for text in stream:
        if words in text:
            return
    pytest.fail(f"the builder ended without saying {words!r}")


def go(options: BuildOptions) -> None:
    (options.place.parent.parent / "go").touch()


def test_of_two_builders_one_waits_and_finds_a_cache_hit(options: BuildOptions) -> None:
    with builder(options) as first:
        line(first, "writing")
        with builder(options, "--json") as second:
            line(second, "another build of")
            go(options)
            _, first_says = first.communicate(timeout=60)
            result, second_says = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0), first_says + second_says
    assert '"cache_hit": true' in result
    assert "cache hit" in second_says
    assert [entry.name for entry in options.place.parent.iterdir()] == ["b"]
    open_bundle(options.place, hashes="all")


def test_when_the_first_of_two_builders_is_killed_the_second_builds(options: BuildOptions) -> None:
    with builder(options) as first:
        line(first, "writing")
        with builder(options, "--json") as second:
            line(second, "another build of")
            first.kill()
            go(options)
            result, says = second.communicate(timeout=60)
    assert second.returncode == 0, says
    assert '"cache_hit": false' in result
    assert [entry.name for entry in options.place.parent.iterdir()] == ["b"]


def test_a_killed_build_leaves_the_old_bundle_and_the_next_build_sweeps(
    options: BuildOptions,
) -> None:
    write_bundle(options.place, key="old")
    with builder(options) as process:
        line(process, "writing")
        process.kill()
        process.wait()
    assert len(list(options.place.parent.iterdir())) > 1
    assert open_bundle(options.place, hashes="all").manifest.build_key == "old"
    build(options, build_graph=fake_graph)
    assert [entry.name for entry in options.place.parent.iterdir()] == ["b"]
    assert open_bundle(options.place, hashes="all").manifest.build_key != "old"


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "terminated"),
    ],
)
def test_an_interrupted_build_removes_what_it_wrote(
    options: BuildOptions, number: signal.Signals, code: int, words: str
) -> None:
    write_bundle(options.place, key="old")
    with builder(options, "--quiet") as process:
        line(process, "writing")
        process.send_signal(number)
        _, says = process.communicate(timeout=60)
    assert process.returncode == code
    assert says == f"{words}\n"
    assert [entry.name for entry in options.place.parent.iterdir()] == ["b"]
    assert open_bundle(options.place, hashes="all").manifest.build_key == "old"


def test_a_builder_stopped_between_its_two_renames_loses_nothing(options: BuildOptions) -> None:
    """The old bundle is aside, the new one not there yet: the next builder puts the old back."""
    write_bundle(options.place, key="old")
    options.place.rename(options.place.with_name(".b.ssd-old"))
    with BundleWriter(options.place):
        assert open_bundle(options.place).manifest.build_key == "old"


def test_a_failing_second_rename_puts_the_old_bundle_back(
    options: BuildOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_bundle(options.place, key="old")
    rename = Path.rename

    def fails_for_the_new(self: Path, other: Path) -> Path:
        if self.name.endswith("ssd-build"):
            raise OSError(5, "Input/output error")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fails_for_the_new)
    with pytest.raises(UsageError, match="Input/output error"):
        build(options, build_graph=fake_graph)
    assert open_bundle(options.place, hashes="all").manifest.build_key == "old"
    assert [entry.name for entry in options.place.parent.iterdir()] == ["b"]


def test_builders_in_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    place = tmp_path / "b"
    inside, most = 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(20):
            with BundleWriter(place) as writer:
                with guard:
                    inside += 1
                    most = max(most, inside)
                (writer.stage() / "x").touch()
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("closed", ["target", ""])
def test_a_bundle_that_may_not_be_looked_into_is_told_with_the_option(closed: str) -> None:
    """It was "Permission denied" and a path, with no word of what to do."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = write_bundle(Path(name) / "b")
        (folder / closed).chmod(0)
        words = "cannot look into .*: Permission denied; make it readable or choose another --out"
        try:
            with as_nobody(), pytest.raises(UsageError, match=words):
                check_replaceable(folder)
        finally:
            (folder / closed).chmod(0o755)


@pytest.mark.parametrize("files", [("bundle.json",), ("bundle.json", "target/classes")])
def test_a_folder_of_another_tool_is_not_replaced(
    options: BuildOptions, files: tuple[str, ...]
) -> None:
    """Others have a bundle.json and a target folder, too."""
    for name in files:
        path = options.place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    with pytest.raises(UsageError, match="will not be replaced"):
        build(options, build_graph=fake_graph)
    assert all((options.place / name).read_text() == "{}" for name in files)


def test_a_file_in_the_place_of_a_dead_builders_remains_is_cleared(options: BuildOptions) -> None:
    options.place.parent.mkdir()
    for kind in ("build", "old"):
        (options.place.parent / f".{options.place.name}.ssd-{kind}").touch()
    build(options, build_graph=fake_graph)
    assert [path.name for path in options.place.parent.iterdir()] == [options.place.name]
