"""A stand-in for ``build_graph``: reads every weight as the real one does, writes two files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from engines.border import graph_inputs, graph_outputs
from engines.bundle import MODEL_FILE
from engines.manifest import TARGET
from export.graph.api import DATA_FILE, GraphRequest, GraphResult, Progress


def fake_graph(
    request: GraphRequest,
    progress: Progress,
    *,
    before_save: Callable[[Path], None] = lambda _folder: None,
) -> GraphResult:
    weights = {name: request.tensor(name) for name in request.names}
    if request.embedding is not None:
        weights["borrowed embedding"] = request.embedding()
    progress("layers", 1, 1)
    total = np.array([array.sum() for array in weights.values()])

    def save(folder: Path) -> None:
        (folder / DATA_FILE).write_bytes(total.tobytes())
        before_save(folder)
        shapes = {name: array.shape for name, array in weights.items()}
        (folder / MODEL_FILE).write_text(f"{request.role} {shapes}", encoding="utf-8")

    return GraphResult(
        save=save,
        inputs=graph_inputs(request.role, request.kv, "L"),
        outputs=graph_outputs(request.role, request.kv, "L", request.spec.vocab_size),
        plugins=("ssd::Verify",) if request.role == TARGET else (),
        num_parameters=sum(array.size for array in weights.values()),
    )


def never(_request: GraphRequest, _progress: Progress) -> GraphResult:
    raise AssertionError("nothing was to be built")


class Recorder:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.steps: list[tuple[str, int, int]] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def step(self, what: str, done: int, total: int) -> None:
        self.steps.append((what, done, total))
