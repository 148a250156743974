"""Every error a user of ssd-trt can meet, as one tree.

    SsdError
    ├── UsageError                  a prompt, option or path that cannot be used
    ├── MissingDependencyError      an optional package is not installed
    ├── CheckpointError             a source checkpoint cannot be read
    │   └── UnsupportedModelError   it can be read, but not built (architecture, rope type, ...)
    ├── PairError                   draft and target do not belong together
    ├── BundleError
    │   ├── BundleMissingError      no bundle at this path
    │   ├── BundleCorruptError      a bundle whose files are damaged or foreign
    │   └── BundleIncompatibleError a sound bundle that cannot run here or at these limits
    ├── CapacityError               a request or a call above the limits the bundle was built with
    ├── BackendError                an engine refused to load or to run
    └── DeviceError                 a stream, event, buffer or graph was misused or failed

A message is one line. It names what was found, what was expected, and the command or
option that fixes it. The command lines print it as ``error: MESSAGE`` and exit with code 2.
"""

from __future__ import annotations


class SsdError(Exception):
    """Base of all errors that carry a message meant for the user."""


class UsageError(SsdError, ValueError):
    """A value given by the caller (prompt, option, path) cannot be used."""


class MissingDependencyError(SsdError, ImportError):
    """An optional package is needed and not installed.

    ``package`` is the distribution to install, ``extra`` the ssd-trt extra that brings it.
    """

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed; "
            f"install it with: pip install 'ssd-trt[{extra}]'"
        )
        self.package = package
        self.extra = extra


class CheckpointError(SsdError):
    """A source checkpoint is missing, damaged or inconsistent."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is sound but describes a model that the exporter cannot build."""


class PairError(SsdError):
    """Draft and target do not fit together (tokenizer, vocabulary, map, lengths)."""


class BundleError(SsdError):
    """Base of everything that is wrong with a bundle directory."""


class BundleMissingError(BundleError):
    """There is no bundle at the given path."""


class BundleCorruptError(BundleError):
    """The manifest or a file of the bundle is damaged, truncated or foreign."""


class BundleIncompatibleError(BundleError):
    """The bundle is sound but cannot be used here, or not with the requested limits."""


class CapacityError(SsdError):
    """A request or a call goes beyond the limits the bundle was built with."""


class BackendError(SsdError):
    """An engine could not be loaded, failed a load-time probe, or failed while running."""


class DeviceError(SsdError):
    """A stream, event, buffer or graph was misused, or work on a stream failed."""


def as_line(message: str, longest: int = 2000) -> str:
    """``message`` as the command lines print it: one line, nothing that a terminal would obey.

    Paths and manifests come from others: control characters and undecodable bytes are escaped.
    """
    line = " ".join(message.split())
    line = line if len(line) <= longest else line[:longest] + "..."
    return escaped(line)


def escaped(text: str) -> str:
    """``text`` without what a terminal would obey; its blanks stay as they are."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
