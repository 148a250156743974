"""An optional package that is absent, damaged, or there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engines.errors import BackendError, MissingDependencyError
from export.check.runners import require_polygraphy
from export.packages import require


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules written here are found first; nothing of them is left for the next test."""
    for name in list(sys.modules):
        if name.partition(".")[0] in ("polygraphy", "optional"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return tmp_path


def test_what_is_there_is_returned_and_what_is_not_names_its_extra(folder: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"testing needs .* opt-ional, .*trt\[extra\]"):
        require("optional", "opt-ional", "extra", "testing")
    (folder / "optional.py").write_text("VALUE = 7", encoding="utf-8")
    assert require("optional", "opt-ional", "extra", "testing", ("VALUE",)).VALUE == 7
    with pytest.raises(BackendError, match=r"cannot be loaded \(.*'OTHER'"):
        require("optional", "opt-ional", "extra", "testing", ("VALUE", "OTHER"))


@pytest.mark.parametrize(
    "code",
    [
        "import nobody_has_this",
        "half a fil",
        "1 / 0",
        "raise SystemExit(0)",
        "raise OSError('.so')",
    ],
)
def test_what_is_damaged_is_not_called_absent(folder: Path, code: str) -> None:
    (folder / "optional.py").write_text(code, encoding="utf-8")
    words = r"^opt-ional is installed but cannot be loaded \(.+\); reinstall it: pip install"
    with pytest.raises(BackendError, match=words):
        require("optional", "opt-ional", "extra", "testing")


def test_an_interrupt_while_importing_stays_one(folder: Path) -> None:
    (folder / "optional.py").write_text("raise KeyboardInterrupt", encoding="utf-8")
    with pytest.raises(KeyboardInterrupt):
        require("optional", "opt-ional", "extra", "testing")


def test_half_a_polygraphy_is_a_damaged_one(folder: Path) -> None:
    """Its first module was there, the next one a traceback."""
    (folder / "polygraphy").mkdir()
    (folder / "polygraphy/__init__.py").touch()
    words = "polygraphy is installed but cannot be loaded .*polygraphy.exception"
    with pytest.raises(BackendError, match=words):
        require_polygraphy("testing")
