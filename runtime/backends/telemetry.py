"""ONNX Runtime's own reports to its makers: off, unless somebody asks for them."""

from __future__ import annotations

import os

VARIABLE = "ORT_DISABLE_TELEMETRY"


def switch_off_telemetry() -> None:
    """To be called before onnxruntime is first imported: its wheels of 1.32 send events, and keep
    an id of the machine in the home folder. A value that the variable has already stays."""
    os.environ.setdefault(VARIABLE, "1")
