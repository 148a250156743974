"""TensorRT and TensorRT-RTX as one object that is handed around.

Both Python modules have the same names for all that is used here; what differs is asked of the
``Vendor``. No other module of this package imports either of them.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from engines.errors import BackendError, MissingDependencyError, UsageError
from export.tensorrt.library_name import provide_library_name

RTX, STANDARD = "tensorrt-rtx", "tensorrt"
VENDORS = (RTX, STANDARD)


@dataclass(frozen=True, slots=True)
class _Package:
    module: str
    distribution: str
    extra: str


_PACKAGES = {
    RTX: _Package("tensorrt_rtx", "tensorrt-rtx-cu13", "rtx"),
    STANDARD: _Package("tensorrt", "tensorrt", "tensorrt"),
}


@dataclass(frozen=True, slots=True)
class Vendor:
    """One of the two products: its Python module, and what it is called in commands."""

    module: Any
    name: str
    version: str
    is_rtx: bool

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = (*self.version.split("."), "0")[:2]
        return int(major), int(minor)

    @property
    def builder(self) -> str:
        """Name and version: what a plan must be read by (``PlanFacts.builder``)."""
        return f"{self.name} {self.version}"


def load(name: str) -> Vendor:
    """The product ``name`` ("tensorrt-rtx" or "tensorrt"), imported once a process.

    Raises MissingDependencyError when it is not installed, BackendError when it is but cannot be
    loaded (a library it needs is missing).
    """
    if name not in _PACKAGES:
        raise UsageError(f"{name!r} is no TensorRT; choose {' or '.join(VENDORS)}")
    return _load(name)


@cache
def _load(name: str) -> Vendor:
    package = _PACKAGES[name]
    try:
        module = importlib.import_module(package.module)
        if name == RTX:
            provide_library_name()
    except ModuleNotFoundError as error:
        if error.name != package.module:
            raise _unloadable(package, error) from None
        purpose = f"building for {name}"
        raise MissingDependencyError(package.distribution, package.extra, purpose) from None
    except (ImportError, OSError) as error:
        raise _unloadable(package, error) from None
    return Vendor(module, name, str(module.__version__), is_rtx=name == RTX)


def _unloadable(package: _Package, error: Exception) -> BackendError:
    return BackendError(
        f"{package.distribution} is installed but cannot be loaded ({error}); reinstall it: "
        f"pip install --force-reinstall 'ssd-trt[{package.extra}]'"
    )
