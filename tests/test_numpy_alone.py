"""Every module imports where numpy alone is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from tests.helpers.source_tree import GRAPH_BUILDERS, PACKAGES, ROOT, ROUTER, ROUTES, sources

IMPORT_ALL = """
import importlib, sys

class Block:
    allowed = {*sys.stdlib_module_names, "numpy", "engines", "plugins", "runtime", "export"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed:
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}")
    if name.startswith("runtime") and "export" in sys.modules:
        print(f"{name} pulls in export")
        break
"""


def import_all(root: Path, names: list[str]) -> list[str]:
    """Import modules where only numpy is installed; what went wrong, a line each."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def test_every_module_imports_with_numpy_alone() -> None:
    """``doctor`` and the fake backends must work where nothing else is installed."""
    names = [
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in sources(ROOT)
        if not any(
            fnmatch(str(file.relative_to(ROOT)), each) for each in (GRAPH_BUILDERS, ROUTES, ROUTER)
        )
    ]
    names.sort(key=lambda name: PACKAGES[name.partition(".")[0]])
    assert import_all(ROOT, names) == []


def test_a_module_that_needs_more_is_named(tmp_path: Path) -> None:
    (tmp_path / "runtime").mkdir()
    (tmp_path / "runtime" / "good.py").write_text("import numpy, json")
    (tmp_path / "runtime" / "bad.py").write_text("import jinja2")
    (tmp_path / "runtime" / "worse.py").write_text("import export")
    (tmp_path / "export").mkdir()
    assert import_all(tmp_path, ["runtime.good", "runtime.bad", "runtime.worse"]) == [
        "runtime.bad: ImportError: jinja2 is blocked",
        "runtime.worse pulls in export",
    ]
