from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from export.cli.cache import EXAMPLES, plain, table
from export.cli.entry import build_parser, main
from export.tensorrt.cache import CacheEntry, EngineCache, EngineFacts
from tests.export.cli.failing import failing

SMALL, LARGE = "5" * 64, "1" * 64
FACTS = EngineFacts("smollm2-135m", "tensorrt-rtx", "fp16", ("8.9", "12.0"))
DAY_S = 86400
HEADINGS = "engine\tsize\tlast used\tsource\tbackend\tprecision\tcapability\n"
NOON = 1_796_040_000  # 2026-11-30 12:00 UTC


@pytest.fixture(autouse=True)
def local_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-02")  # two hours ahead
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineCache:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    monkeypatch.delenv("SSD_TRT_CACHE_GB", raising=False)
    return EngineCache()


@pytest.fixture
def cache(empty: EngineCache) -> EngineCache:
    """Two engines: a small one last used at noon, a large one two days earlier."""
    empty.put(SMALL, bytes(1000), FACTS)
    empty.put(LARGE, bytes(2_000_000), EngineFacts("a\tname", "tensorrt", "int8", ("9.0",)))
    for key, used_s in ((SMALL, NOON), (LARGE, NOON - 2 * DAY_S)):
        os.utime(empty.folder / f"{key}.engine", (used_s, used_s))
    return empty


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[str, str]:
    assert main(["cache", *argv]) == 0
    out, err = capsys.readouterr()
    return out, err


def test_a_terminal_gets_an_aligned_table(
    cache: EngineCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    out, err = run(capsys, "list")
    head, small, large = out.splitlines()
    assert head == (
        "engine        size    last used         source        backend       precision  capability"
    )
    assert small == (
        "555555555555  1.3 kB  2026-11-30 14:00  smollm2-135m  tensorrt-rtx  fp16       8.9 12.0"
    )
    assert large == (
        "111111111111  2.0 MB  2026-11-28 14:00  a name        tensorrt      int8       9.0"
    )
    assert err == f"2 engines, 2.0 MB of 20.0 GB in {cache.folder}\n"


def test_a_pipe_gets_whole_values_between_tabs(
    cache: EngineCache, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run(capsys, "list")
    sizes = {entry.key: str(entry.num_bytes) for entry in cache.entries()}
    at_noon = "T12:00:00+00:00"
    assert out.startswith(HEADINGS)
    assert [line.split("\t") for line in out.splitlines()[1:]] == [
        [
            SMALL,
            sizes[SMALL],
            f"2026-11-30{at_noon}",
            "smollm2-135m",
            "tensorrt-rtx",
            "fp16",
            "8.9 12.0",
        ],
        [LARGE, sizes[LARGE], f"2026-11-28{at_noon}", "a name", "tensorrt", "int8", "9.0"],
    ]
    assert err.startswith("2 engines")
    assert run(capsys, "list", "--quiet") == (out, "")


def test_json_is_one_object(cache: EngineCache, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "list", "--json")
    facts = json.loads(out)
    assert err == ""
    assert facts["folder"] == str(cache.folder)
    assert facts["max_bytes"] == 20_000_000_000
    small, large = facts["engines"]
    assert facts["num_bytes"] == small["num_bytes"] + large["num_bytes"] > 2_001_000
    assert (small["key"], large["key"]) == (SMALL, LARGE)
    assert small["last_used_s"] == NOON
    assert large["facts"] == {
        "source": "a\tname",
        "backend": "tensorrt",
        "precision": "int8",
        "capabilities": ["9.0"],
    }


def test_an_unreadable_entry_is_shown_as_such(
    cache: EngineCache, capsys: pytest.CaptureFixture[str]
) -> None:
    (cache.folder / f"{SMALL}.engine").write_bytes(b"damage")
    out, _ = run(capsys, "list")
    assert f"{SMALL}\t6\t" in out
    assert "\t(unreadable)\t-\t-\t-\n" in out
    engines = json.loads(run(capsys, "list", "--json")[0])["engines"]
    assert [engine["facts"] is None for engine in engines] == [True, False]


def test_names_from_a_file_cannot_command_the_terminal(
    empty: EngineCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.put(SMALL, b"plan", EngineFacts("\x1b[2Jname", "\x07", "fp16", ("8\t9",)))
    row = run(capsys, "list")[0].splitlines()[1]
    assert row.split("\t")[3:] == ["\\x1b[2Jname", "\\x07", "fp16", "8 9"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert "\x1b" not in run(capsys, "list")[0]


@pytest.mark.parametrize(("used_s", "year"), [(1e15, "9999"), (-1e15, "1970")])
def test_a_time_that_no_calendar_has_is_shown_all_the_same(used_s: float, year: str) -> None:
    entry = CacheEntry(SMALL, 1, used_s, None)
    assert f"\t{year}-01-01T" in plain([entry])
    assert f"  {year}-01-01 " in table([entry])


@pytest.mark.timeout(60)
def test_a_fifo_among_the_engines_stops_neither_command(
    cache: EngineCache, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(cache.folder / f"{'0' * 64}.engine")
    assert run(capsys, "list")[1].startswith("2 engines")
    assert "removed 2 engines" in run(capsys, "clear")[0]


def test_an_empty_cache_says_so(empty: EngineCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "list") == (HEADINGS, f"no engines in {empty.folder}\n")
    assert json.loads(run(capsys, "list", "--json")[0])["engines"] == []
    assert run(capsys, "clear") == (f"nothing to remove in {empty.folder}\n", "")
    assert json.loads(run(capsys, "clear", "--json")[0])["num_removed"] == 0
    assert not empty.folder.exists()


def test_clear_says_what_it_freed(cache: EngineCache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "clear") == (f"removed 2 engines from {cache.folder}, freed 2.0 MB\n", "")
    assert cache.entries() == ()


def test_clear_as_json(cache: EngineCache, capsys: pytest.CaptureFixture[str]) -> None:
    num_bytes = sum(entry.num_bytes for entry in cache.entries())
    assert json.loads(run(capsys, "clear", "--json")[0]) == {
        "folder": str(cache.folder),
        "num_removed": 2,
        "freed_bytes": num_bytes,
    }


def test_clear_by_age_in_days(cache: EngineCache, capsys: pytest.CaptureFixture[str]) -> None:
    yesterday = time.time() - 1 * DAY_S
    os.utime(cache.folder / f"{SMALL}.engine", (yesterday, yesterday))
    os.utime(cache.folder / f"{LARGE}.engine", (yesterday - DAY_S, yesterday - DAY_S))
    assert "removed 1 engine from" in run(capsys, "clear", "--older-than", "1.5")[0]
    assert [entry.key for entry in cache.entries()] == [SMALL]
    assert "nothing to remove" in run(capsys, "clear", "--older-than", "1.5")[0]


def test_clear_down_to_a_size_in_gigabytes(
    cache: EngineCache, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing to remove" in run(capsys, "clear", "--max-size", "0.0021")[0]
    assert "removed 1 engine from" in run(capsys, "clear", "--max-size", "0.002")[0]
    assert [entry.key for entry in cache.entries()] == [SMALL]
    assert "removed 1 engine from" in run(capsys, "clear", "--max-size", "0")[0]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: list|clear (see python -m export cache --help)"),
        (["dance"], "invalid choice: 'dance'"),
        (["list", "--older-than", "1"], "unrecognized arguments: --older-than 1"),
        (["clear", "--older-than", "-1"], "--older-than: '-1' is not a number from 0 to"),
        (["clear", "--older-than", "old"], "--older-than: 'old' is not a number"),
        (["clear", "--max-size", "nan"], "--max-size: 'nan' is not a number"),
        (["clear", "--max-size", "5GB"], "--max-size: '5GB' is not a number"),
        (["clear", "--max-size", "1e300"], "--max-size: '1e300' is not a number"),
        (["clear", "--max"], "unrecognized arguments: --max"),
    ],
)
def test_a_wrong_command_line_removes_nothing(
    cache: EngineCache, capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    assert words in failing(capsys, "cache", *argv)
    assert len(cache.entries()) == 2


def test_trouble_with_the_folder_is_one_line(
    empty: EngineCache, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    empty.folder.touch()
    for action in ("list", "clear"):
        assert str(empty.folder) in failing(capsys, "cache", action)
    monkeypatch.setenv("SSD_TRT_CACHE_GB", "much")
    assert "SSD_TRT_CACHE_GB is 'much'" in failing(capsys, "cache", "list")


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_cache_that_cannot_be_a_folder_names_the_variable(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("SSD_TRT_CACHE", str(file))
    err = failing(capsys, "cache", action)
    assert "Not a directory; SSD_TRT_CACHE names another folder" in err
    assert str(file) in err


@pytest.mark.parametrize("action", ["list", "clear"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_a_line_break_in_the_folders_name_makes_no_second_line(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    is_empty: bool,
) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "a\nb\x1b[31m"))
    if not is_empty:
        EngineCache().put(SMALL, b"plan", FACTS)
    out, err = run(capsys, action)
    said = out if action == "clear" else err
    assert said.count("\n") == 1
    assert "a b\\x1b[31m/engines" in said


@pytest.mark.usefixtures("cache")
def test_clear_says_that_it_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood still without a word while another process held the lock."""

    def busy(_path: Path, on_wait: Callable[[], None]) -> AbstractContextManager[None]:
        on_wait()
        return nullcontext()

    monkeypatch.setattr("export.tensorrt.cache.locked", busy)
    out, err = run(capsys, "clear")
    assert "removed 2 engines" in out
    assert err.startswith("another process is changing the engine cache ")
    assert run(capsys, "clear", "--quiet")[1] == ""


def test_the_help_has_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in EXAMPLES.splitlines() if line.startswith("  python -m export ")]
    assert len(lines) >= 3
    for line in lines:
        build_parser().parse_args(line.split()[3:])
    for command in (["cache"], ["cache", "list"], ["cache", "clear"]):
        assert main([*command, "--help"]) == 0
        assert "python -m export " + " ".join(command) in capsys.readouterr().out
    assert main(["--help"]) == 0
    assert "cache" in capsys.readouterr().out
