"""The library of ONNX Runtime operators: compiled once, and never a condition."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.errors import BackendError, UsageError
from plugins import cxx
from plugins.ort import __main__ as command
from plugins.ort import library
from plugins.ort.library import Library

FLAGS = "processor\t: 0\nflags\t\t: fpu avx512f avx512_vnni\n"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A processor that has all, an empty cache and package, and a compiler that is counted."""
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(FLAGS)
    monkeypatch.setattr(library, "CPUINFO", cpuinfo)
    monkeypatch.setattr(library, "PACKAGED", tmp_path / "built")
    library.forget()
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(library.SWITCH, raising=False)
    yield tmp_path
    library.forget()


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The sources that were compiled, to nothing that could be loaded."""
    sources: list[Path] = []
    monkeypatch.setattr(cxx, "compiler", lambda: "g++")
    monkeypatch.setattr(cxx, "why_not_loadable", lambda *_: "")

    def compile_library(source: Path, _flags: object, *, entry: str, most_s: float) -> bytes:
        assert (entry, most_s) == (library.ENTRY, library.MOST_S)
        sources.append(source)
        return b"library"

    monkeypatch.setattr(cxx, "compile_library", compile_library)
    return sources


def test_it_is_compiled_once_and_kept(compiled: list[Path], machine: Path) -> None:
    first, second = library.find(), library.find()
    assert compiled == [library.SOURCE]
    assert first == second
    assert first.path is not None
    assert first.path.is_relative_to(machine / "cache")
    assert first.path.read_bytes() == b"library"
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o644, "who runs it may be somebody else"
    assert first.identity.startswith("ssd ")


def test_a_library_in_the_package_comes_first(compiled: list[Path], machine: Path) -> None:
    assert library.package() == library.package() == library.find()
    assert len(compiled) == 1
    assert not (machine / "cache").exists()


def test_other_sources_are_another_library(
    compiled: list[Path], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = library.find()
    source = machine / "library.cc"
    source.write_text("// other")
    monkeypatch.setattr(library, "SOURCE", source)
    monkeypatch.setattr(cxx, "compile_library", lambda *_, **__: b"other")
    assert library.find().identity != before.identity
    assert len(compiled) == 1


def test_nothing_is_compiled_for_who_only_asks(compiled: list[Path]) -> None:
    found = library.find(may_compile=False)
    assert (found.path, compiled) == (None, [])
    assert found.reason == library.TO_COME
    made = library.find()
    assert library.find(may_compile=False) == made


@pytest.mark.parametrize(
    ("cpuinfo", "reason"),
    [
        ("flags\t: fpu avx512f\n", "has no avx512_vnni"),
        ("flags\t: fpu avx2\n", "has no avx512f and no avx512_vnni"),
        ("Features\t: asimd\n", "has no avx512f and no avx512_vnni"),
        (None, "has no avx512f and no avx512_vnni"),
    ],
)
def test_processors_that_lack_the_instructions_have_none(
    compiled: list[Path], machine: Path, cpuinfo: str | None, reason: str
) -> None:
    if cpuinfo is None:
        (machine / "cpuinfo").unlink()
    else:
        (machine / "cpuinfo").write_text(cpuinfo)
    found = library.find()
    assert (found.path, compiled) == (None, [])
    assert found.reason.endswith(reason)
    assert found.identity == "ONNX Runtime's own"


@pytest.mark.parametrize(
    ("value", "is_there"), [("off", False), ("OFF", False), ("on", True), ("", True)]
)
def test_the_switch(
    compiled: list[Path], monkeypatch: pytest.MonkeyPatch, value: str, is_there: bool
) -> None:
    monkeypatch.setenv(library.SWITCH, value)
    assert (library.find().path is not None) == is_there == bool(compiled)
    assert not library.find().is_missed


def test_a_switch_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.SWITCH, "no")
    with pytest.raises(UsageError, match="SSD_TRT_CPU_KERNELS is 'no', it must be on or off"):
        library.find()


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = library.find()
    assert found.path is None
    assert "g++, which is not on the path; install" in found.reason
    assert library.find(may_compile=False) == found
    with pytest.raises(BackendError, match="install"):
        library.package()


def test_a_compiler_that_refuses_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(source: Path, *_: object, **__: object) -> bytes:
        asked.append(source)
        raise BackendError("g++ refuses library.cc: error: too old")

    monkeypatch.setattr(cxx, "compile_library", refuse)
    assert library.find() == library.find()
    assert library.find().reason == "g++ refuses library.cc: error: too old"
    assert len(asked) == 1


def test_what_was_found_first_holds_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two engines of a process, or what is noted of one, could be of different kernels."""

    def refuse(*_: object, **__: object) -> bytes:
        raise BackendError("no memory")

    monkeypatch.setattr(cxx, "compile_library", refuse)
    first = library.find()
    monkeypatch.setattr(cxx, "compile_library", lambda *_, **__: b"library")
    monkeypatch.setattr(cxx, "why_not_loadable", lambda *_: "")
    library.package()  # as another process would
    assert library.find() == first == Library(None, "no memory", is_missed=True)
    library.forget()
    assert library.find().path is not None


def test_a_compiler_that_cannot_be_run_or_speaks_in_bytes(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = machine / "g++"
    monkeypatch.setattr(cxx, "compiler", lambda: str(compiler))
    assert f"{compiler} cannot be run" in library.find().reason
    scripts = {
        "printf 'error: \\377\\n' >&2; exit 1": "g++ refuses library.cc: error: \ufffd",
        "exit 3": "g++ refuses library.cc: it ended with 3 and without a word",
        "yes | head -c 9999 >&2; exit 1": "g++ refuses library.cc: y y y",
        "exit 0": "g++ made no library of library.cc: ",
        'eval "mkdir \\${$#}"': "g++ made no library of library.cc: ",
        'eval "echo no library > \\${$#}"': "file too short",
    }
    for script, reason in scripts.items():
        library.forget()
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        compiler.chmod(0o755)
        found = library.find()
        assert found.path is None
        assert reason in found.reason
        assert len(found.reason) < 400
        assert not list(machine.rglob("*.so")), "what does not work is not kept"


def test_a_compiler_that_does_not_come_to_an_end(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = machine / "g++"
    compiler.write_text("#!/bin/sh\nexec sleep 60\n")
    compiler.chmod(0o755)
    monkeypatch.setattr(cxx, "compiler", lambda: str(compiler))
    monkeypatch.setattr(library, "MOST_S", 0.2)
    assert library.find().reason.endswith("was stopped: it took more than 0.2 s")


def test_no_folder_for_temporary_files_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(cxx.tempfile, "TemporaryDirectory", none)
    assert "library.cc cannot be compiled" in library.find().reason


def test_a_kept_library_that_cannot_be_loaded_is_told(
    compiled: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that nothing may be run from: to compile it again would not help."""
    kept = library.find().path
    library.forget()
    monkeypatch.setattr(cxx, "why_not_loadable", lambda *_: "failed to map segment")
    found = library.find()
    assert found.reason == (
        f"{kept} cannot be loaded (failed to map segment); remove it, or name another folder in "
        "SSD_TRT_CACHE"
    )
    assert len(compiled) == 1


def test_sources_that_are_not_there_are_no_error(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "SOURCE", machine / "missing.cc")
    found = library.find()
    assert found.path is None
    assert "missing.cc" in found.reason


def test_another_architecture_has_none(
    compiled: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image for it must be built all the same."""
    monkeypatch.setattr(library.platform, "machine", lambda: "aarch64")
    assert library.find() == library.package()
    assert library.find().reason == (
        "they are written for Linux on x86_64, and this is Linux on aarch64"
    )
    assert command.main(["--package"]) == 0
    assert capsys.readouterr().out.startswith("none: they are written for Linux on x86_64")
    assert compiled == []


def test_a_cache_that_cannot_be_written_is_no_error(
    compiled: list[Path], machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (machine / "file").write_text("")
    monkeypatch.setenv("SSD_TRT_CACHE", str(machine / "file"))
    found = library.find()
    assert found.path is None
    assert "SSD_TRT_CACHE" in found.reason
    assert library.find(may_compile=False) == found
    assert compiled == [], "nothing is compiled that cannot be kept"
    monkeypatch.delenv("SSD_TRT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert "no cache folder" in library.find().reason


def no_home(_path: Path) -> Path:
    raise RuntimeError("no home directory")


def test_the_command(
    compiled: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["library"], record["reason"]) == (str(library.find().path), "")
    assert command.main([]) == 0
    assert capsys.readouterr().out.startswith("kernels ssd ")
    monkeypatch.setenv(library.SWITCH, "off")
    assert command.main([]) == 0
    assert capsys.readouterr().out == (
        "none: SSD_TRT_CPU_KERNELS is off; ONNX Runtime's own kernels run\n"
    )
    monkeypatch.setenv(library.SWITCH, "maybe")
    assert command.main([]) == 2
    assert capsys.readouterr().err.startswith("error: SSD_TRT_CPU_KERNELS is 'maybe'")
    assert len(compiled) == 1


@pytest.mark.usefixtures("compiled")
def test_the_command_compiles_into_the_package(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for a processor that cannot run it: an image is built elsewhere."""
    (machine / "cpuinfo").write_text("flags\t: fpu\n")
    assert command.main(["--package", "--json"]) == 0
    path = Path(json.loads(capsys.readouterr().out)["library"])
    assert path.parent == machine / "built"
    shutil.rmtree(machine / "built")
    (machine / "built").write_text("in the way")
    assert command.main(["--package"]) == 2
    assert "run this as who installed the package" in capsys.readouterr().err
    monkeypatch.setenv(library.SWITCH, "maybe")
    assert command.main(["--package"]) == 2


def test_ctrl_c_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(cxx, "compile_library", interrupt)
    assert command.main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.vnni
def test_the_sources_raise_no_warning() -> None:
    """GCC's own headers do: an undefined value that is never read."""
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-maybe-uninitialized")
    assert cxx.compile_library(library.SOURCE, [*library.FLAGS, *warnings])
