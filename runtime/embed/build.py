"""Compiles the library of ``include/ssd.h`` and lays out a folder that C and C++ build against.

    DIR/lib/libssd_trt.so           -> libssd_trt.so.1, the library
    DIR/lib/pkgconfig/ssd_trt.pc    for pkg-config; finds its folder by itself
    DIR/lib/cmake/ssd_trt/          for find_package(ssd_trt)
    DIR/include/                    ssd.h, ssd.hpp
    DIR/share/ssd_trt/examples/     programs to start from

cffi writes the C that calls Python (its embedding mode); csrc/ has the rest. The library names this
environment's python and the folders that its packages were imported from.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path

from engines.errors import MissingDependencyError, UsageError
from runtime.embed import ABI_VERSION
from runtime.embed.staging import staged

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NAME = "ssd_trt"
SONAME = f"lib{NAME}.so.{ABI_VERSION}"
MODULE = f"_{NAME}"
"""What Python knows the library as."""
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden")
LINK_FLAGS = (
    f"-Wl,-soname,{SONAME}",
    # A Python that has started cannot be taken out of a process again.
    "-Wl,-z,nodelete",
    "-Wl,-z,defs",
    "-ldl",
)
EXPORTS = f"SSD_TRT_{ABI_VERSION} {{ global: ssd_*; local: *; }};\n"
START_CODE = f"""
from {MODULE} import ffi, lib
from runtime.embed.bridge import connect
connect(ffi, lib)
"""
PKG_CONFIG = f"""\
prefix=${{pcfiledir}}/../..
libdir=${{prefix}}/lib
includedir=${{prefix}}/include

Name: ssd-trt
Description: Asynchronous speculative decoding (SSD), compiled ahead of time
Version: @VERSION@
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -l{NAME}
"""
LONGEST_COMPLAINT = 400
SCRATCH = "ssd-trt"
"""Names the hidden folder in ``out`` that a run works in."""


@dataclass(frozen=True, slots=True)
class Python:
    """What the library is compiled against. ``library`` is the file with the interpreter in it."""

    executable: Path
    include: Path
    library: Path

    @classmethod
    def of_this_process(cls) -> Python:
        """Raises UsageError where it cannot be embedded."""
        if sys.platform != "linux":
            raise UsageError(f"the library is built on Linux, and this is {sys.platform}")
        include = Path(sysconfig.get_path("include"))
        if not (include / "Python.h").is_file():
            raise UsageError(
                f"{include} has no Python.h; install Python's development files (Debian: "
                f"libpython{sys.version_info[0]}.{sys.version_info[1]}-dev)"
            )
        return cls(Path(sys.executable), include, _libpython())


@dataclass(frozen=True, slots=True)
class Built:
    """What was made."""

    out: Path
    library: Path
    version: str
    python: Path


def build(out: Path, *, tell: Callable[[str], None] = lambda _line: None) -> Built:
    """Compile the library into the folder ``out``, which may exist: files of the same names are
    replaced, each as a whole, and nothing is if anything fails. ``tell`` gets a line a step.

    All is made in ``out`` itself first: what is above it may be another disk, or not ours to write.
    A killed run leaves its hidden folder there, and the next one removes it.

    Raises MissingDependencyError without cffi; UsageError where there is no compiler, no Python to
    embed, another run writes ``out``, or it cannot be written.
    """
    python, compiler = Python.of_this_process(), _compiler()
    _require_cffi()
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file, expected a folder or a path that is free: --out DIR")
    try:
        with _folder(out), staged(out, SCRATCH) as scratch:
            made = scratch / "made"
            _lay_out(made)
            tell(f"compiling {SONAME} with {shlex.join(compiler)} for {python.executable}")
            _compile(python, compiler, scratch, made / "lib" / SONAME)
            _move(made, out)
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error}); choose another --out DIR") from None
    return Built(out, out / "lib" / SONAME, own_version(), python.executable)


def own_version() -> str:
    """Of ssd-trt, as it is installed or, in a clone that is not, as its pyproject.toml has it."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        found = re.search(r'^version = "(.+)"$', project.read_text("utf-8"), re.MULTILINE)
        if found is not None:
            return found[1]
    try:
        return version("ssd-trt")
    except PackageNotFoundError:
        raise UsageError(f"{ROOT} is no ssd-trt that is installed, and no clone of it") from None


def _libpython() -> Path:
    name = sysconfig.get_config_var("INSTSONAME") or ""
    folders = [sysconfig.get_config_var(each) for each in ("LIBDIR", "LIBPL")]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if folders[0] and multiarch:
        folders.append(os.path.join(folders[0], multiarch))
    for folder in filter(None, folders):
        path = Path(folder, name)
        if ".so" in name and path.is_file():
            return path
    raise UsageError(
        f"this Python ({sys.executable}) has no shared library libpython, for programs in C; "
        "install it (Debian: libpython3-dev), or use a Python built with --enable-shared"
    )


def _compiler() -> list[str]:
    """``CC`` of the environment, else cc or gcc."""
    named = shlex.split(os.environ.get("CC", ""))
    found = shutil.which(named[0]) if named else shutil.which("cc") or shutil.which("gcc")
    if found is None:
        looked = named[0] if named else "cc and gcc"
        raise UsageError(f"no C compiler: looked for {looked}; install gcc, or name one in CC")
    return [found, *named[1:]]


def _require_cffi() -> None:
    try:
        import_module("cffi")  # only whether it is there
    except ImportError:
        raise MissingDependencyError("cffi", "embed", "building the library") from None


def _lay_out(made: Path) -> None:
    """All but the library."""
    shutil.copytree(HERE / "include", made / "include")
    examples = shutil.ignore_patterns("__pycache__", "build*")
    for source, target in (("cmake", f"lib/cmake/{NAME}"), ("examples", f"share/{NAME}/examples")):
        if (HERE / source).is_dir():
            shutil.copytree(HERE / source, made / target, ignore=examples)
    config = made / "lib" / "pkgconfig" / f"{NAME}.pc.in"
    config.parent.mkdir(parents=True)
    config.write_text(PKG_CONFIG, "utf-8")
    values = {"@VERSION@": own_version(), "@SONAME@": SONAME}
    for template in made.rglob("*.in"):
        text = template.read_text("utf-8")
        for name, value in values.items():
            text = text.replace(name, value)
        template.with_suffix("").write_text(text, "utf-8")
        template.unlink()
    (made / "lib" / f"lib{NAME}.so").symlink_to(SONAME)


def _compile(python: Python, compiler: list[str], scratch: Path, library: Path) -> None:
    source, exports = scratch / f"{MODULE}.c", scratch / "exports.map"
    _write_source(python, source)
    exports.write_text(EXPORTS, "utf-8")
    command = [
        *(*compiler, *FLAGS, f"-I{HERE / 'include'}", f"-I{HERE / 'csrc'}", f"-I{python.include}"),
        *(str(source), "-o", str(library), str(python.library), *LINK_FLAGS),
        *(f"-Wl,-rpath,{python.library.parent}", f"-Wl,--version-script={exports}"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"{compiler[0]} cannot be run ({error}); name another in CC") from None
    if done.returncode != 0:
        complaint = next(
            (line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()
        )
        raise UsageError(
            f"{shlex.join(compiler)} ended with code {done.returncode}: "
            f"{complaint[:LONGEST_COMPLAINT]}"
        )


def _write_source(python: Python, path: Path) -> None:
    from cffi import FFI

    ffi = FFI()
    header = (HERE / "include" / "ssd.h").read_text("utf-8")
    ffi.cdef(_types(header) + "\nvoid keep_error(const char *line);")
    ffi.embedding_api(_without_comments((HERE / "csrc" / "python.h").read_text("utf-8")))
    ffi.embedding_init_code(START_CODE)
    constants = {
        "SSD_VERSION": own_version().encode(),
        "SSD_PYTHON": os.fsencode(python.executable),
        "SSD_PLACES": ascii(_places()).encode(),
        "SSD_LIBPYTHON": os.fsencode(python.library.name),
    }
    source = [f"#define {name} {c_string(value)}" for name, value in constants.items()]
    source += [f'#include "{name}"' for name in ("ssd.h", "python.h", "start.h", "ssd.c")]
    ffi.set_source(MODULE, "\n".join(source))
    with redirect_stdout(StringIO()):  # it tells what it writes, where --json has its answer
        ffi.emit_c_code(str(path))


def _types(header: str) -> str:
    """The types of ssd.h without its functions: what cffi has to know to fill them."""
    text = _without_comments(header)
    text = text[text.index("typedef struct ssd_model ") : text.rindex("#ifdef __cplusplus")]
    return re.sub(r"SSD_API[^;]*;", "", text)


def _without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def c_string(data: bytes) -> str:
    """A literal of C that is these bytes, whatever they are."""
    plain = {*b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 _-./:,=[]()'"}
    return '"' + "".join(chr(each) if each in plain else f"\\{each:03o}" for each in data) + '"'


def _places() -> list[str]:
    """Where this process imports packages from, ssd-trt first; the standard library is found by
    whatever Python it will be."""
    standard = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib")}
    standard |= {os.path.join(each, "lib-dynload") for each in standard}
    here = os.getcwd()
    rest = [
        each
        for each in map(os.path.abspath, filter(None, sys.path))
        if os.path.isdir(each) and each not in standard and each != here
    ]
    return list(dict.fromkeys([str(ROOT), *rest]))


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make the folder ``out`` where it is missing; after an error it is gone again."""
    is_new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):  # another run is in it by now
                out.rmdir()
        raise


def _move(made: Path, out: Path) -> None:
    for folder, _, names in os.walk(made):
        target = out / Path(folder).relative_to(made)
        target.mkdir(exist_ok=True)
        for name in names:
            os.replace(Path(folder, name), target / name)
