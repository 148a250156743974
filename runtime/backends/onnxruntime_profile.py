"""Where did ONNX Runtime run an engine's nodes? Read from the profile of a call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engines.errors import BackendError
from runtime.backends.onnxruntime import one_line
from runtime.backends.onnxruntime_gpu_package import INSTALL, PROVIDER

COPY_NODES = {"MemcpyToHost", "MemcpyFromHost"}
SHAPE_NODES = {"Shape", "Size", "Sub", "Max"}
"""What our graphs compute with shapes; ONNX Runtime does that on the CPU on purpose."""


def read_profile(file: Path) -> Sequence[Any]:
    """The events of a profile. Raises BackendError where there is none: without it nobody knows."""
    try:
        events = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BackendError(
            f"ONNX Runtime left no profile of the first call ({one_line(error)}), so nobody "
            f"knows where its nodes run; try another version: {INSTALL}"
        ) from None
    return events if isinstance(events, list) else []


def nodes_on_cpu(events: Sequence[Any]) -> list[str]:
    """Operators that a profile shows on the CPU, if anything was copied to or from the host.

    Where nothing was copied, what ran on the CPU computed with shapes.
    """
    nodes = [
        event["args"]
        for event in events
        if event.get("cat") == "Node" and "op_name" in event.get("args", {})
    ]
    if not any(node["op_name"] in COPY_NODES for node in nodes):
        return []
    on_cpu = {node["op_name"] for node in nodes if node.get("provider") != PROVIDER}
    guilty = sorted(on_cpu - COPY_NODES - SHAPE_NODES) or sorted(on_cpu - COPY_NODES)
    return guilty or ["an operator that wants an input on the CPU"]
