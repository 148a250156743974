"""One module object for either product, and why it is not there when it is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.errors import BackendError, MissingDependencyError, UsageError
from export.tensorrt import vendor

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test loads anew, and leaves nothing for the next."""
    monkeypatch.setattr(vendor, "_load", vendor._load.__wrapped__)


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    (folder / "tensorrt.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    # Set and taken out again: what gets in now is taken out when the test ends.
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    del sys.modules["tensorrt"]


@pytest.mark.parametrize(("name", "extra"), [("tensorrt-rtx", "rtx"), ("tensorrt", "tensorrt")])
def test_an_absent_package_names_its_extra(
    name: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name.replace("-", "_"), None)
    with pytest.raises(MissingDependencyError, match=rf"building for {name} .*ssd-trt\[{extra}\]"):
        vendor.load(name)


@pytest.mark.parametrize(
    "code",
    [
        "raise ImportError('libnvinfer.so.11: cannot open shared object file')",
        "raise OSError('libnvinfer.so.11: cannot open shared object file')",
        "import libnvinfer_so_11_bindings",
    ],
)
def test_a_broken_package_is_not_called_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    package(tmp_path, monkeypatch, code)
    with pytest.raises(BackendError, match=r"installed but cannot be loaded .*libnvinfer"):
        vendor.load("tensorrt")


@pytest.mark.parametrize(
    "code",
    [
        "",
        "__version__ = None",
        "__version__ = '10'; import tensorrt.part",
        "half a fil",
        "1 / 0",
        "raise SystemExit(0)",
        "open('/nowhere/at/all')",
    ],
)
def test_a_damaged_package_is_one_line_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """An interrupted installation leaves empty and half files: each was a traceback."""
    package(tmp_path, monkeypatch, code)
    cure = r"^tensorrt is installed but cannot be loaded \(.*\); reinstall it: pip install --force"
    with pytest.raises(BackendError, match=cure):
        vendor.load("tensorrt")


def test_the_module_comes_with_its_name_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, monkeypatch, "__version__ = '10.15.1.29'")
    found = vendor.load("tensorrt")
    assert (found.name, found.release, found.is_rtx) == ("tensorrt", (10, 15), False)
    assert found.builder == "tensorrt 10.15.1.29"


def test_another_name_is_refused() -> None:
    with pytest.raises(UsageError, match="choose tensorrt-rtx or tensorrt"):
        vendor.load("tensorflow")


OPEN = """
import ctypes, os, sys
if sys.argv[1] == "no memfd":
    def refused(_name):
        raise OSError("no memfd")
    os.memfd_create = refused
from export.tensorrt.vendor import load
load("tensorrt-rtx")
library = ctypes.CDLL("libtensorrt_rtx.so")
print(library.getInferLibVersion())
"""


@pytest.mark.rtx
@pytest.mark.parametrize("how", ["memfd", "no memfd"])
def test_the_library_is_found_by_the_name_that_its_parser_asks_for(
    tmp_path: Path, how: str
) -> None:
    """Without it the process aborts at the first plugin node; nothing may be left on disk."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    environment.pop("LD_LIBRARY_PATH", None)
    done = subprocess.run(
        [sys.executable, "-c", OPEN, how],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10000
    assert list(tmp_path.iterdir()) == []
