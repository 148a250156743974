"""The folder that ``embed --out`` makes, and what it refuses: then nothing is left."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import MissingDependencyError, SsdError, UsageError
from runtime.cli.entry import main
from runtime.embed import ABI_VERSION
from runtime.embed import build as building
from runtime.embed.build import build, c_string, own_version
from tests.helpers.killed import kill_itself


def test_only_the_functions_of_the_header_are_visible(library: Path) -> None:
    """Another library's names, cffi's among them, would meet those of the host."""
    told = subprocess.run(
        ["nm", "-D", "--defined-only", str(library / "lib" / "libssd_trt.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {line.split()[-1].split("@")[0] for line in told.splitlines()} - {"SSD_TRT_1"}
    header = (library / "include" / "ssd.h").read_text()
    declared = {
        line.split("(")[0].split()[-1].lstrip("*")
        for line in header.splitlines()
        if line.startswith("SSD_API") and "(" in line
    }
    assert found == declared
    assert "ssd_request_read" in found


def test_the_header_and_the_package_are_of_one_version(library: Path) -> None:
    assert f"#define SSD_ABI_VERSION {ABI_VERSION}\n" in (library / "include" / "ssd.h").read_text()
    dynamic = subprocess.run(
        ["objdump", "-p", str(library / "lib" / "libssd_trt.so")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"SONAME               libssd_trt.so.{ABI_VERSION}\n" in dynamic


def test_pkg_config_is_told_where_the_file_itself_lies(library: Path) -> None:
    """The folder may be moved as a whole."""
    file = library / "lib" / "pkgconfig" / "ssd_trt.pc"
    values = dict(re.findall(r"^(\w+)[=:] ?(.*)$", file.read_text(), re.MULTILINE))
    values["pcfiledir"] = str(file.parent)

    def read(text: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda each: read(values[each[1]]), text)

    includes, folder, name = read(f"{values['Cflags']} {values['Libs']}").split()
    assert (Path(includes.removeprefix("-I")) / "ssd.h").is_file()
    assert (Path(folder.removeprefix("-L")) / f"lib{name.removeprefix('-l')}.so").is_file()
    assert values["Version"] == own_version()


def test_nothing_of_a_template_is_left(library: Path) -> None:
    assert not list(library.rglob("*.in"))
    assert "@" not in (library / "lib" / "pkgconfig" / "ssd_trt.pc").read_text()


def test_the_command_says_what_it_made_and_adds_to_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    (out / "include").mkdir(parents=True)
    (out / "include" / "ssd.h").write_text("old")
    (out / "include" / "other.h").write_text("kept")
    assert main(["embed", "--out", str(out), "--json", "--quiet"]) == 0
    told = capsys.readouterr()
    record = json.loads(told.out)
    assert told.err == ""
    assert Path(record["library"]).is_file()
    assert record["version"] == own_version()
    assert (out / "include" / "other.h").read_text() == "kept"
    assert "ssd_model" in (out / "include" / "ssd.h").read_text()
    assert (out / "lib" / "libssd_trt.so").samefile(record["library"])
    assert {each.name for each in out.iterdir()} == {"include", "lib", "share"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [([], "neither"), (["--out", "a", "--triton", "b"], "both"), (["--out"], "argument --out")],
)
def test_the_command_refuses_bad_use(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["embed", *arguments]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert reason in line


def _no_compiler(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("CC", "no-such-compiler")


def _no_compiler_at_all(patch: pytest.MonkeyPatch) -> None:
    patch.delenv("CC", raising=False)
    patch.setenv("PATH", "/no/such")


def _broken_compiler(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("CC", "false")


def _compiler_that_complains(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(building, "FLAGS", (*building.FLAGS, "-DSSD_H"))  # which leaves out all types


def _static_python(patch: pytest.MonkeyPatch) -> None:
    real = sysconfig.get_config_var
    patch.setattr(
        sysconfig,
        "get_config_var",
        lambda name: "libpython3.11.a" if name == "INSTSONAME" else real(name),
    )


def _no_headers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sysconfig, "get_path", lambda _name: "/no/such")


def _another_system(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sys, "platform", "win32")


def _no_cffi(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "cffi", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("spoil", "kind", "reason"),
    [
        (_no_compiler, UsageError, "no C compiler: looked for no-such-compiler"),
        (_no_compiler_at_all, UsageError, "no C compiler: looked for cc and gcc"),
        (_broken_compiler, UsageError, "false ended with code 1"),
        (_compiler_that_complains, UsageError, "error: unknown type name"),
        (_static_python, UsageError, "no shared library libpython"),
        (_no_headers, UsageError, "no Python.h"),
        (_another_system, UsageError, "built on Linux"),
        (_no_cffi, MissingDependencyError, r"ssd-trt\[embed\]"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_left(
    spoil: Callable[[pytest.MonkeyPatch], None],
    kind: type[SsdError],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spoil(monkeypatch)
    empty = tmp_path / "empty"
    empty.mkdir()
    for out in (tmp_path / "new" / "out", tmp_path, empty):
        with pytest.raises(kind, match=reason):
            build(out)
    monkeypatch.undo()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    assert not (tmp_path / "new" / "out").exists()
    assert empty.exists()


def test_what_a_killed_run_has_left_is_gone_after_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run worked beside its folder, where no later one looked."""
    out = tmp_path / "new" / "out"
    is_killed = (
        "import os, signal, sys; from pathlib import Path; from runtime.embed import build;"
        "build._compile = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "build.build(Path(sys.argv[1]))"
    )
    kill_itself(is_killed, out)
    assert any(out.iterdir())
    monkeypatch.setattr(building, "_compile", lambda *_: None)
    build(out)
    assert [each.name for each in out.parent.iterdir()] == ["out"]
    assert {each.name for each in out.iterdir()} == {"include", "lib", "share"}


@pytest.mark.parametrize("is_new", [True, False])
def test_two_runs_do_not_write_one_folder(
    is_new: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the folder appears while the first one runs."""
    out = tmp_path / "out"
    num_compiled = 0

    def compiling(*_: object) -> None:
        nonlocal num_compiled
        num_compiled += 1
        assert num_compiled == 1
        out.mkdir(exist_ok=True)
        with pytest.raises(UsageError, match="another run writes"):
            build(out)

    if not is_new:
        out.mkdir()
    monkeypatch.setattr(building, "_compile", compiling)
    build(out)
    assert {each.name for each in out.iterdir()} == {"include", "lib", "share"}


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(UsageError, match="is a file"):
        build(file)
    with pytest.raises(UsageError, match="cannot be written"):
        build(file / "out")
    assert [*tmp_path.iterdir()] == [file]


@given(st.binary(max_size=40))
def test_a_literal_of_c_is_the_bytes_that_it_was_made_of(data: bytes) -> None:
    """A path may have any byte in it, quotes and trigraphs too; octal escapes are always whole."""
    literal = c_string(data)
    assert literal.isascii()
    inner = literal.removeprefix('"').removesuffix('"')
    assert '"' not in inner
    assert "?" not in inner
    read, index = bytearray(), 0
    while index < len(inner):
        is_escape = inner[index] == "\\"
        read.append(int(inner[index + 1 : index + 4], 8) if is_escape else ord(inner[index]))
        index += 4 if is_escape else 1
    assert bytes(read) == data
