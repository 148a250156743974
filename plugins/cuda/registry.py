"""The kernels by name, each described by the `KERNEL` of its operator's module."""

from __future__ import annotations

from importlib import import_module

from engines.errors import UsageError
from plugins.cuda.kernel import Kernel

NAMES = (
    *("verify", "sample", "law", "noise"),
    *("lookup", "fork", "chain", "kv_commit", "branch_mask", "put", "take"),
)


def kernel(name: str) -> Kernel:
    """Raises UsageError for a name that no operator has."""
    if name not in NAMES:
        raise UsageError(f"no kernel {name!r}; there are {', '.join(NAMES)}")
    found: Kernel = import_module(f"plugins.{name}.kernel").KERNEL
    return found


def kernels() -> list[Kernel]:
    return [kernel(name) for name in NAMES]
