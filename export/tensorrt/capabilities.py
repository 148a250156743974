"""Which GPUs an engine is compiled for, as compute capabilities ("8.9").

TensorRT-RTX compiles for any set of those it knows, without a GPU; standard TensorRT for the GPU
of this machine.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from engines.errors import UsageError
from export.tensorrt.vendor import RTX, STANDARD, Vendor

BF16_SINCE = (8, 0)
"""Compute capability from which bfloat16 arithmetic exists."""
_CC_MAJOR, _CC_MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_FORM = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """This machine's first GPU."""

    name: str
    capability: str


def supported_capabilities(vendor: Vendor) -> tuple[str, ...]:
    """What engines can be compiled for, from the module's own table: ("7.5", "8.0", ...).

    Empty for standard TensorRT, which compiles for the GPU that it runs on.
    """
    table = getattr(vendor.module, "ComputeCapability", None)
    return tuple(_dotted(name) for name in _sm_names(table))


def capability_value(vendor: Vendor, capability: str) -> Any:
    """The module's own value for "8.9"."""
    table = vendor.module.ComputeCapability
    return next(table.__members__[name] for name in _sm_names(table) if _dotted(name) == capability)


def choose_capabilities(
    vendor: Vendor, wanted: Sequence[str], precision: str, gpu: LocalGpu | None = None
) -> tuple[str, ...]:
    """The capabilities to compile for, in rising order. None ``wanted``: all that suit.

    ``gpu`` is this machine's, for which alone standard TensorRT can compile. UsageError for a
    capability that the vendor, or the precision, does not support.
    """
    supported = supported_capabilities(vendor)
    for capability in wanted:
        _check_form(capability, supported)
    if not supported:
        return (_local_only(vendor, wanted, precision, gpu),)
    for capability in wanted:
        if capability not in supported:
            raise UsageError(_unsupported(vendor, capability, supported))
    chosen = wanted or [capability for capability in supported if _rank(capability) >= BF16_SINCE]
    for capability in chosen:
        _check_precision(capability, precision)
    return tuple(sorted(set(chosen), key=_rank))


def _local_only(vendor: Vendor, wanted: Sequence[str], precision: str, gpu: LocalGpu | None) -> str:
    if gpu is None:
        raise UsageError(
            f"{vendor.name} compiles on the GPU that will run the engine, and no GPU can be used "
            f"here; build on that machine, or with --backend {RTX}, which needs none"
        )
    for capability in wanted:
        if capability != gpu.capability:
            raise UsageError(
                f"--compute-capability {capability}: {vendor.name} compiles only for the GPU that "
                f"it runs on, here {gpu.capability} ({gpu.name}); leave the option out, or use "
                f"--backend {RTX}"
            )
    _check_precision(gpu.capability, precision)
    return gpu.capability


def _check_form(capability: str, supported: Sequence[str]) -> None:
    """UsageError, which quotes what was given: a blank at its end would not be seen."""
    if not _FORM.fullmatch(capability):
        shown = capability if len(capability) <= 20 else f"{capability[:17]}..."
        examples = f"one of {' '.join(supported)}" if supported else "8.9 for example"
        raise UsageError(
            f"--compute-capability {shown!r} is not written as major.minor, {examples}; "
            "several are words of their own: 8.9 12.0"
        )


def _unsupported(vendor: Vendor, capability: str, supported: Sequence[str]) -> str:
    message = (
        f"--compute-capability {capability} is not supported by {vendor.name} {vendor.version}; "
        f"choose from {' '.join(supported)}"
    )
    if _rank(capability)[0] in (9, 10, 11):
        message += f", or build on the machine with that GPU: --backend {STANDARD}"
    return message


def _check_precision(capability: str, precision: str) -> None:
    if precision == "bf16" and _rank(capability) < BF16_SINCE:
        raise UsageError(
            f"--precision bf16 cannot run on compute capability {capability}, which has no "
            "bfloat16 arithmetic (8.0 and newer have); use --precision fp16"
        )


def _sm_names(table: Any) -> Iterator[str]:
    """Names such as SM89, without the table's NONE and CURRENT."""
    members = getattr(table, "__members__", {})
    return (name for name in members if name.startswith("SM") and name[2:].isdigit())


def _dotted(name: str) -> str:
    return f"{name[2:-1]}.{name[-1]}"


def _rank(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)


def local_gpu() -> LocalGpu | None:
    """None without a GPU that can be used, or without its driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(256)
    calls: tuple[Callable[[], int], ...] = (
        lambda: driver.cuInit(0),
        lambda: driver.cuDeviceGet(ctypes.byref(device), 0),
        lambda: driver.cuDeviceGetName(name, len(name), device),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(major), _CC_MAJOR, device),
        lambda: driver.cuDeviceGetAttribute(ctypes.byref(minor), _CC_MINOR, device),
    )
    if any(call() != 0 for call in calls):
        return None
    return LocalGpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}")


def local_capability() -> str | None:
    """Compute capability of ``local_gpu``; None without one."""
    gpu = local_gpu()
    return None if gpu is None else gpu.capability
