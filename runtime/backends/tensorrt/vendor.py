"""TensorRT or TensorRT-RTX, as one object that a session is given."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

from engines.errors import BackendError, MissingDependencyError, UsageError

STANDARD, RTX = "tensorrt", "tensorrt-rtx"
_PACKAGES = {STANDARD: ("tensorrt", "tensorrt"), RTX: ("tensorrt-rtx-cu13", "rtx")}
"""Backend -> the distribution and the extra that bring it. The module has an underscore."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """One of the two: its Python module, and what bundles call it."""

    module: Any
    name: str
    version: str

    @classmethod
    def of(cls, module: Any) -> Vendor:
        """The product that an imported module belongs to."""
        return cls(module, module.__name__.replace("_", "-"), str(module.__version__))

    @property
    def is_rtx(self) -> bool:
        return self.name == RTX

    @property
    def builder(self) -> str:
        """Name and version: what a plan that it can read was built by (``PlanFacts.builder``)."""
        return f"{self.name} {self.version}"


@cache
def load_vendor(name: str) -> Vendor:
    """The product of a bundle's backend, imported once a process.

    Raises UsageError for another backend, MissingDependencyError where it is not installed, and
    BackendError where it is but cannot be loaded.
    """
    if name not in _PACKAGES:
        raise UsageError(f"{name!r} is no TensorRT; it is {STANDARD} or {RTX}")
    distribution, extra = _PACKAGES[name]
    module = name.replace("-", "_")
    try:
        return Vendor.of(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise _broken(distribution, extra, error) from error
        raise MissingDependencyError(distribution, extra, f"running a {name} bundle") from None
    except (ImportError, OSError, AttributeError) as error:
        raise _broken(distribution, extra, error) from error


def _broken(distribution: str, extra: str, error: Exception) -> BackendError:
    why = " ".join(str(error).split())
    return BackendError(
        f"{distribution} is installed but cannot be loaded ({why}); "
        f"install it again: pip install --force-reinstall 'ssd-trt[{extra}]'"
    )
