"""What a C caller is told of an error: a status of ssd.h and a line."""

from __future__ import annotations

from engines.errors import (
    BackendError,
    BundleCorruptError,
    BundleError,
    BundleIncompatibleError,
    BundleMissingError,
    CapacityError,
    CheckpointError,
    DeviceError,
    MissingDependencyError,
    PairError,
    SsdError,
    UsageError,
    as_line,
)


class HandleError(SsdError):
    """No model, or no request: NULL, closed, of the other kind, or never made."""


class SmallBufferError(SsdError):
    """The caller's buffer does not hold what there is."""


class StateError(SsdError):
    """Too early: the text is not complete."""


STATUSES: dict[type[BaseException], str] = {
    UsageError: "SSD_ERROR_USAGE",
    SmallBufferError: "SSD_ERROR_BUFFER",
    HandleError: "SSD_ERROR_HANDLE",
    StateError: "SSD_ERROR_STATE",
    MissingDependencyError: "SSD_ERROR_MISSING_DEPENDENCY",
    BundleError: "SSD_ERROR_BUNDLE",
    BundleMissingError: "SSD_ERROR_BUNDLE_MISSING",
    BundleCorruptError: "SSD_ERROR_BUNDLE_CORRUPT",
    BundleIncompatibleError: "SSD_ERROR_BUNDLE_INCOMPATIBLE",
    PairError: "SSD_ERROR_PAIR",
    CheckpointError: "SSD_ERROR_CHECKPOINT",
    CapacityError: "SSD_ERROR_CAPACITY",
    BackendError: "SSD_ERROR_BACKEND",
    DeviceError: "SSD_ERROR_DEVICE",
    OSError: "SSD_ERROR_SYSTEM",
    MemoryError: "SSD_ERROR_MEMORY",
    KeyboardInterrupt: "SSD_ERROR_SYSTEM",  # of a host that is Python
}
INTERNAL = "SSD_ERROR_INTERNAL"


def status_of(error: BaseException) -> tuple[str, str]:
    """The status's name and the line of an error. What is not in the table is a fault of ours."""
    for kind in type(error).__mro__:
        if kind in STATUSES:
            return STATUSES[kind], as_line(str(error) or f"a {type(error).__name__}")
    return INTERNAL, as_line(f"a fault of ssd-trt, please report it: {error!r}")
