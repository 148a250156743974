"""TensorRT and TensorRT-RTX as one object that is handed around.

Both Python modules have the same names for all that is used here; what differs is asked of the
``Vendor``. No other module of this package imports either of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from engines.errors import UsageError
from export.packages import require, unloadable
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
    loaded (a library it needs is missing, or its files are damaged).
    """
    if name not in _PACKAGES:
        raise UsageError(f"{name!r} is no TensorRT; choose {' or '.join(VENDORS)}")
    return _load(name)


@cache
def _load(name: str) -> Vendor:
    package = _PACKAGES[name]
    module = require(package.module, package.distribution, package.extra, f"building for {name}")
    try:
        if name == RTX:
            provide_library_name()
        vendor = Vendor(module, name, str(module.__version__), is_rtx=name == RTX)
        _ = vendor.release  # a version that is none belongs to no whole package
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise unloadable(package.distribution, package.extra, error) from None
    return vendor
