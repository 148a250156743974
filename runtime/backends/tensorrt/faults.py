"""Errors of TensorRT: what was called, what TensorRT or our layers said, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import BackendError
from plugins import tensorrt as registry
from plugins.vendor_log import Messages
from runtime.backends.tensorrt.vendor import Vendor

_REMEDIES = {
    "out of memory": "use smaller limits (--max-len, --max-batch) or a GPU with more free memory",
    "driver version is insufficient": "update the NVIDIA driver, until nvidia-smi runs",
}
"""By what a reason holds; other reasons have the remedy of their call."""
REOPEN = "open the bundle again; if that fails too, build it again on this machine"


@dataclass(frozen=True, slots=True)
class Faults:
    """Makes the errors of one engine. TensorRT returns false, or None, and tells its logger why."""

    vendor: Vendor
    role: str
    messages: Messages

    def forget(self) -> None:
        """Before a call: what was said on this thread until now is not about it."""
        self.messages.clear_here()

    def make(self, call: str, remedy: str = REOPEN, error: Exception | None = None) -> BackendError:
        """The error of a call that failed, after ``forget`` and the call, on the same thread."""
        reason = self.reason(error)
        known = [fix for words, fix in _REMEDIES.items() if words in reason.lower()]
        remedy = known[0] if known else remedy
        return BackendError(
            f"{call} of the {self.role} engine failed on {self.vendor.builder}: {reason}; {remedy}"
        )

    def reason(self, error: Exception | None = None) -> str:
        """Our layers' own words, for which TensorRT has a code only; else TensorRT's."""
        refused = registry.refusals(self.vendor.module)
        if refused:
            return refused[0]
        if error is not None and not self.messages.errors_here:
            return " ".join(str(error).split()) or type(error).__name__
        return self.messages.reason_here
