"""The folders are the architecture: who may import whom, each rule also on trees that break it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.helpers.source_tree import GRAPH_BUILDERS, PACKAGES, ROOT, ROUTER, ROUTES, sources

RUNTIME_FLOORS = {
    "": 6,
    "device": 0,
    "kv": 1,
    "backends": 2,
    "sampling": 2,
    "spec": 3,
    "workers": 4,
    "resident": 4,
    "round": 5,
    "side": 5,
    "journal": 5,
    "lanes": 5,
    "course": 5,
    "grammar": 5,
    "request": 5,
    "stats": 5,
    "ticket": 5,
    "scheduler": 5,
    "seats": 5,
    "config": 5,
    "memo": 5,
    "trace": 5,
    "placement": 5,
    "devices": 5,
    "loader": 6,
    "loading": 6,
    "memory_plan": 6,
    "call": 6,
    "intake": 6,
    "engine_loop": 6,
    "async_llm": 6,
    "completion": 6,
    "score": 6,
    "settings": 6,
    "wishes": 6,
    "calibrate": 6,
    "plan": 6,
    "llm": 6,
    "engine": 6,
    "text": 6,
    "serve": 7,
    "embed": 7,
    "bench": 7,
    "doctor": 7,
    "cli": 7,
    "__main__": 7,
}
SAME_FLOOR = {4, 5, 6, 7}
"""Floors of runtime whose files work together; below them, each folder stands alone."""
VENDORS = {"onnxruntime", "torch", "tensorrt", "tensorrt_rtx", "cuda", "polygraphy", "transformers"}
MAY_IMPORT_VENDORS = (
    "export/*",
    "plugins/*/tensorrt.py",
    "runtime/backends/*.py",
    "plugins/cuda/compiler.py",
    "plugins/cuda/device.py",
    "plugins/cuda/torch_gpu.py",
    "runtime/device/cuda.py",
    "runtime/bench/dataset/peers/*.py",
)
MAY_IMPORT_TORCH = "plugins/*/kernel.py"
"""They name the torch program that a kernel is timed against; inside functions only."""
OFFLINE_API = ("runtime.llm", "runtime.text", "runtime.spec.replay")
"""All that export may use of runtime, and only inside functions (verify, distill). The n-grams are
the runtime's own lookup drafts, which distill measures a draft with."""
SESSIONS = ("runtime.backends.", "runtime.device.")
MAY_OPEN_SESSIONS = ("export/bench/*.py", "export/check/runners.py")
"""They time and check engines as the runtime runs them; also inside functions only."""
OF_ROUTES = {"fastapi", "starlette", "pydantic", "prometheus_client", "uvicorn"}


@dataclass(frozen=True)
class Import:
    """``module`` as written in full; ``is_lazy``: inside a function, or for type checking only."""

    file: str
    line: int
    module: str
    is_lazy: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} imports {self.module}"


def imports_of(root: Path, file: Path) -> Iterator[Import]:
    where = file.relative_to(root)
    package = where.parts[:-1]

    def visit(node: ast.AST, is_lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(str(where), node.lineno, alias.name, is_lazy)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                is_module = module.partition(".")[0] in PACKAGES and _exists(root, module, alias)
                name = f"{module}.{alias.name}" if is_module else module
                yield Import(str(where), node.lineno, name, is_lazy)
        inner = is_lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inner = inner or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inner)

    yield from visit(ast.parse(file.read_text(encoding="utf-8")), False)


def _exists(root: Path, module: str, alias: ast.alias) -> bool:
    path = root.joinpath(*module.split("."), alias.name)
    return path.with_suffix(".py").exists() or path.is_dir()


def runtime_part(module: str) -> str:
    """``kv`` of ``runtime.kv.slots``; empty for ``runtime`` itself."""
    return f"{module}.".split(".")[1]


def violations(root: Path) -> list[str]:
    found = []
    for file in sources(root):
        where = file.relative_to(root)
        part = _part_of(where)
        if part and part not in RUNTIME_FLOORS:
            found.append(f"{where}: has no floor in RUNTIME_FLOORS")
            continue
        for each in imports_of(root, file):
            reason = judge(each)
            if reason is not None:
                found.append(f"{each}: {reason}")
    return list(dict.fromkeys(found))


def judge(each: Import) -> str | None:
    """Why an import breaks a rule, or None."""
    if each.top in VENDORS:
        is_rival = each.top == "torch" and each.is_lazy and fnmatch(each.file, MAY_IMPORT_TORCH)
        may_import = any(fnmatch(each.file, pattern) for pattern in MAY_IMPORT_VENDORS)
        if not (may_import or is_rival):
            return "a vendor package outside its modules"
    elif each.top in PACKAGES:
        return _judge_floor(each)
    if each.top == "ray" and not fnmatch(each.file, "runtime/serve/ray/*.py"):
        return "Ray outside runtime/serve/ray"
    allowed = {*sys.stdlib_module_names, *PACKAGES, "numpy"}
    if each.file == ROUTER:
        allowed |= {"ray"}
    if fnmatch(each.file, GRAPH_BUILDERS):
        allowed |= {"onnx", "onnx_ir"}
    if fnmatch(each.file, ROUTES):
        allowed |= OF_ROUTES
    if each.top not in allowed and not each.is_lazy:
        return "a third-party package at module level; import it inside the function"
    return None


def _judge_floor(each: Import) -> str | None:
    home = each.file.partition("/")[0]
    if PACKAGES[each.top] > PACKAGES[home]:
        return f"{each.top} stands above {home}"
    if home == "export" and each.top == "runtime":
        may_open = any(fnmatch(each.file, pattern) for pattern in MAY_OPEN_SESSIONS)
        usable = OFFLINE_API + SESSIONS if may_open else OFFLINE_API
        is_offline = each.is_lazy and each.module.startswith(usable)
        return None if is_offline else "export may use the offline API only, inside functions"
    if home == "runtime" and each.top == "runtime":
        here, there = _part_of(Path(each.file)), runtime_part(each.module)
        if there and here != there:
            theirs, ours = RUNTIME_FLOORS.get(there, 9), RUNTIME_FLOORS[here]
            if theirs > ours or (theirs == ours and ours not in SAME_FLOOR):
                return f"runtime/{there} (R{theirs}) is not below runtime/{here} (R{ours})"
    return None


def _part_of(file: Path) -> str:
    """The part of runtime a file belongs to; empty elsewhere and for runtime's own __init__."""
    if file.parts[0] != "runtime" or file.parts[1:] == ("__init__.py",):
        return ""
    return file.parts[1].removesuffix(".py")


def test_every_import_keeps_to_its_floor() -> None:
    assert sources(ROOT), "found nothing to check"
    assert violations(ROOT) == []


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("engines/a.py", "import plugins.verify", "plugins stands above engines"),
        ("runtime/cli/a.py", "def f():\n    from export import build", "export stands above"),
        ("runtime/kv/a.py", "from runtime.spec import cache", "runtime/spec (R3) is not below"),
        ("runtime/kv/a.py", "from runtime import llm", "runtime/llm (R6) is not below"),
        ("runtime/kv/a.py", "from .. import llm", "runtime/llm (R6) is not below"),
        ("runtime/sampling/a.py", "from ..backends import toy", "runtime/backends (R2) is not"),
        ("runtime/spec/a.py", "if TYPE_CHECKING:\n    import runtime.workers", "is not below"),
        ("runtime/novel/a.py", "import os", "has no floor"),
        ("runtime/sampling/a.py", "def f():\n    import torch", "a vendor package"),
        ("runtime/doctor.py", "import cuda.bindings.driver", "a vendor package"),
        ("runtime/cli/a.py", "def f():\n    import ray", "Ray outside"),
        ("runtime/serve/ray/a.py", "from ray import serve", "a third-party package at module"),
        ("runtime/device/cuda_lane.py", "def f():\n    import cuda.core", "a vendor package"),
        ("plugins/verify/onnx.py", "def f():\n    import tensorrt", "a vendor package"),
        ("plugins/cuda/host.py", "def f():\n    import cuda.core", "a vendor package"),
        ("plugins/lookup/kernel.py", "def f():\n    import cuda.core", "a vendor package"),
        ("plugins/lookup/kernel.py", "import torch", "a vendor package"),
        ("plugins/lookup/reference.py", "def f():\n    import torch", "a vendor package"),
        ("runtime/text/a.py", "import jinja2", "at module level"),
        ("export/a.py", "import onnx_ir", "at module level"),
        ("export/graph/a.py", "import gguf", "at module level"),
        ("export/a.py", "import runtime.llm", "export may use the offline API only"),
        ("export/a.py", "def f():\n    from runtime.kv import slots", "export may use"),
        ("export/a.py", "def f():\n    from runtime.backends import toy", "export may use"),
        ("export/bench/a.py", "def f():\n    from runtime.workers import x", "export may use"),
    ],
)
def test_a_broken_rule_is_found(path: str, code: str, reason: str, tmp_path: Path) -> None:
    _tree(tmp_path, path, code)
    [found] = violations(tmp_path)
    assert reason in found


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("runtime/round.py", "from runtime.scheduler import x\nfrom runtime.kv.slots import y"),
        ("runtime/kv/a.py", "from runtime.kv import b\nfrom .b import c\nimport numpy as np"),
        ("runtime/text/a.py", "def f():\n    import jinja2"),
        ("runtime/text/a.py", "if TYPE_CHECKING:\n    import tokenizers"),
        ("runtime/backends/a.py", "def f():\n    import onnxruntime"),
        ("runtime/device/cuda.py", "def f():\n    import cuda.core"),
        ("plugins/verify/tensorrt.py", "def f():\n    import tensorrt"),
        ("plugins/cuda/compiler.py", "def f():\n    import cuda.core"),
        ("plugins/lookup/kernel.py", "def f():\n    import torch"),
        ("export/a.py", "def f():\n    from runtime.llm import LLM"),
        ("export/a.py", "def f():\n    from runtime.text import Tokenizer"),
        ("export/graph/a.py", "import onnx_ir as ir"),
        ("runtime/serve/http/a.py", "from fastapi import FastAPI"),
        ("runtime/serve/ray/a.py", "def f():\n    from ray import serve"),
        ("runtime/serve/ray/router.py", "from ray.serve.request_router import RequestRouter"),
        ("export/bench/a.py", "def f():\n    from runtime.backends.toy import ToySession"),
    ],
)
def test_a_kept_rule_is_not_reported(path: str, code: str, tmp_path: Path) -> None:
    _tree(tmp_path, path, code)
    assert violations(tmp_path) == []


def _tree(root: Path, path: str, code: str) -> None:
    """A source tree with one file of interest, and the modules that the examples import."""
    for name in ("runtime/llm.py", "runtime/spec/cache.py", "runtime/backends/toy.py", path):
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(code if name == path else "")
