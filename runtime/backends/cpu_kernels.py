"""What the CPU sessions of ONNX Runtime are given to compute with, besides ONNX Runtime itself."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Any

from plugins.ort.library import SWITCH, Library, find, forget

INT8_COMPUTE = ("session.qdq_matmulnbits_accuracy_level", "4")
"""Without it a fused 8-bit matrix is multiplied in float32: 757 us instead of 15 us a layer."""

_log = logging.getLogger(__name__)


def session_options(onnxruntime: Any, num_threads: int) -> Any:
    """Options of a session on the CPU, of the module ``onnxruntime``: our operators registered
    where they can be had.

    Raises UsageError where SSD_TRT_CPU_KERNELS is neither on nor off.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry(*INT8_COMPUTE)
    if not _register(options, onnxruntime):
        # Its file is gone: a cache was emptied while we run.
        forget()
        _refusal.cache_clear()
        _register(options, onnxruntime)
    return options


def _register(options: Any, onnxruntime: Any) -> bool:
    """Give a session our operators; False if a library that was taken before is not taken now."""
    library = kernels(onnxruntime)
    if library.path is None:
        return True
    try:
        options.register_custom_ops_library(str(library.path))
    except Exception as error:
        _log.warning("%s is not taken any more: %s", library.path, error)
        return False
    return True


def kernels(onnxruntime: Any) -> Library:
    """The library of operators that sessions of ``onnxruntime`` take here, or why there is none."""
    found = find()
    if found.path is None:
        if found.is_missed:
            _tell(found.reason)
        return found
    refusal = _refusal(onnxruntime, found.path)
    return found if refusal is None else Library(None, refusal)


@cache
def _tell(reason: str) -> None:
    """Once: it is slower, and texts may differ from those of other days."""
    _log.warning("%s. ONNX Runtime's own kernels run (%s=off is silent about it)", reason, SWITCH)


@cache
def _refusal(onnxruntime: Any, path: Path) -> str | None:
    """Asked once: another ONNX Runtime, or a folder that nothing may be loaded from."""
    try:
        onnxruntime.SessionOptions().register_custom_ops_library(str(path))
    except Exception as error:
        refusal = f"ONNX Runtime {onnxruntime.__version__} does not take {path}: {error}"
        _log.warning("%s; its own kernels run", refusal)
        return refusal
    return None
