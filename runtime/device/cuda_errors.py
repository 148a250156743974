"""What went wrong in CUDA, with the call that met it and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from engines.errors import DeviceError, SsdError

_LOST = (
    "the CUDA context is lost, end the process; to find the kernel, run again with "
    "CUDA_LAUNCH_BLOCKING=1 or under compute-sanitizer"
)
_CAPTURE = (
    "work that goes into a graph may only enqueue: run it once before the capture, so that it "
    "allocates and loads its kernels then, and let it sync nothing"
)

_REMEDIES = {
    "OUT_OF_MEMORY": "use smaller limits (max-len, max-batch) or a GPU with more free memory",
    "STREAM_CAPTURE": _CAPTURE,
    "ILLEGAL_ADDRESS": _LOST,
    "ILLEGAL_INSTRUCTION": _LOST,
    "MISALIGNED_ADDRESS": _LOST,
    "LAUNCH_FAILED": _LOST,
    "LAUNCH_TIMEOUT": _LOST,
    "ASSERT": _LOST,
    "ECC_UNCORRECTABLE": "the GPU reports a memory fault, look at nvidia-smi -q",
    "INVALID_DEVICE": "nvidia-smi -L lists the GPUs, CUDA_VISIBLE_DEVICES hides some",
    "NO_DEVICE": "nvidia-smi -L lists the GPUs, CUDA_VISIBLE_DEVICES hides some",
    "NVIDIA driver": "install the NVIDIA driver, until nvidia-smi runs",
    "INSUFFICIENT_DRIVER": "update the NVIDIA driver",
    "SYSTEM_DRIVER_MISMATCH": "reboot, so that the driver and its library match",
    "NOT_SUPPORTED": "this GPU or its driver lacks the feature, leave the option out",
}
_ANY_OTHER = "close the stream and create a new one"


@contextmanager
def cuda_call(call: str, remedy: str = "") -> Iterator[None]:
    """Turn what a CUDA call raises into a DeviceError that names the call and the remedy.

    `call` says what was called and on what. `remedy` is for errors that say nothing themselves.
    """
    try:
        yield
    except SsdError:
        raise
    except Exception as error:  # cuda.core keeps the type of its own errors to itself
        raise DeviceError(
            f"{call} failed: {reason(error)}; {_remedy_for(str(error)) or remedy or _ANY_OTHER}"
        ) from error


def reason(error: Exception) -> str:
    """An error of cuda.core on one line, without the essay that follows its first sentence."""
    text = " ".join(str(error).split())
    sentence = text.partition(". ")[0].rstrip(".")
    return sentence or type(error).__name__


def _remedy_for(message: str) -> str:
    return next((text for name, text in _REMEDIES.items() if name in message), "")
