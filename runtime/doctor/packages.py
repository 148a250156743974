"""The packages that this project knows: which are here, and which of them can be used."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """A package this project knows. ``distributions``: names it is also published under."""

    name: str
    extra: str | None
    least: tuple[int, int] | None = None
    distributions: tuple[str, ...] = ()
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """``problem`` is None when the package can be used."""

    name: str
    version: str | None
    extra: str | None
    problem: str | None


REQUIREMENTS = (
    Requirement("numpy", None, (2, 0)),
    Requirement("onnxruntime", "cpu", (1, 32)),
    Requirement("onnxruntime-gpu", "gpu", (1, 31), module="onnxruntime"),
    Requirement("tokenizers", "cpu", (0, 22)),
    Requirement("jinja2", "cpu", (3, 1)),
    Requirement("rich", "cpu", (13, 0)),
    Requirement("onnx", "export", (1, 22)),
    Requirement("onnx-ir", "export", (0, 2)),
    Requirement("gguf", "export", (0, 17)),
    Requirement("safetensors", "export", (0, 6)),
    Requirement("huggingface-hub", "hub", (1, 0)),
    Requirement("torch", "torch", (2, 13)),
    Requirement("transformers", "torch", (5, 0)),
    Requirement("tensorrt", "tensorrt", (10, 15), ("tensorrt-cu13", "tensorrt-cu12")),
    Requirement("tensorrt-rtx-cu13", "rtx", (1, 7), module="tensorrt_rtx"),
    Requirement("cuda-core", "cuda", (1, 2), module="cuda"),
    Requirement("cuda-bindings", "cuda", module="cuda"),
    Requirement("polygraphy", "bench", (0, 53)),
    Requirement("llguidance", "grammar", (1, 9)),
    Requirement("fastapi", "serve", (0, 130)),
    Requirement("uvicorn", "serve", (0, 40)),
    Requirement("prometheus-client", "serve", (0, 22)),
    Requirement("httpx2", "serve", (2, 12)),
    Requirement("cffi", "embed", (2, 0)),
    Requirement("ray", "ray", (2, 60)),
)


def installed() -> tuple[Package, ...]:
    """What is known of each package, in the order of ``REQUIREMENTS``."""
    return tuple(_package(requirement) for requirement in REQUIREMENTS)


def bad(packages: tuple[Package, ...], needed: tuple[str, ...]) -> dict[str, Package]:
    """The needed packages that cannot be used, in the order of ``needed``."""
    found = {package.name: package for package in packages}
    return {name: found[name] for name in needed if found[name].problem is not None}


def problems(bad: dict[str, Package]) -> tuple[str, ...]:
    """One for each of them."""
    return tuple(f"{name}: {package.problem}" for name, package in bad.items())


def installs(bad: dict[str, Package]) -> tuple[str, ...]:
    """The one command that brings them all; none where nothing is bad."""
    extras = list(dict.fromkeys(package.extra for package in bad.values() if package.extra))
    if "gpu" in extras:  # it has what they have, and the other executor must not come with it
        extras = [extra for extra in extras if extra not in ("cpu", "cuda")]
    return (f"pip install 'ssd-trt[{','.join(extras)}]'",) if extras else ()


def _package(wanted: Requirement) -> Package:
    version = _version(wanted)
    problem = None
    if version is None:
        problem = "not installed"
    elif not _is_there(wanted.module or wanted.name.replace("-", "_")):
        problem = "damaged: its files are missing"
    elif wanted.least is not None and _release(version) < wanted.least:
        problem = f"{version} is older than {'.'.join(map(str, wanted.least))}"
    return Package(wanted.name, version, wanted.extra, problem)


def _version(wanted: Requirement) -> str | None:
    for distribution in (wanted.name, *wanted.distributions):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
