"""Which engine of a bundle can answer for it on this machine, and what that leaves unchecked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from engines.bundle import Bundle
from engines.errors import BackendError
from engines.manifest import EngineManifest
from engines.tensors import DType
from export.check.engine import Engine, OnnxEngine, PlanEngine, Text
from export.check.fidelity import Logits
from export.check.runners import (
    manifest_of,
    onnx_runner,
    open_plan,
    require_polygraphy,
    usable_cores,
    why_no_plan,
    without_chatter,
)

Score = Callable[[Path, str, list[int]], Logits]
"""``score(bundle, role, ids)``: an engine's logits after each of ``ids``, [tokens, V]."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """``engine`` says what ``score`` runs; ``notes`` what could not be checked, a line each."""

    engine: str
    score: Score
    notes: tuple[str, ...] = ()


@contextmanager
def scoring(bundle: Bundle, role: str) -> Iterator[Scoring]:
    """One engine of ``bundle``: its plan where a GPU can run it, else the graph it came from.

    Raises BackendError when neither can run here, MissingDependencyError.
    """
    manifest = manifest_of(bundle, role)
    if manifest.plan is None:
        from runtime.llm import scorer

        with scorer(bundle.path, role) as read:
            yield Scoring("engine", lambda _bundle, _role, ids: read(ids))
        return
    require_polygraphy("checking a compiled engine")
    with without_chatter():
        reason = why_no_plan(manifest)
        if reason is None:
            with closing(PlanEngine(open_plan(bundle, role))) as engine:
                yield Scoring("plan", _score_with(engine))
            return
        note = (
            f"the {role} plan was not run: {reason}; its graph was checked on ONNX Runtime instead"
        )
        with closing(open_graph(bundle, manifest, reason)) as engine:
            yield Scoring("graph", _score_with(engine), (note,))


def open_graph(bundle: Bundle, manifest: EngineManifest, reason: str) -> OnnxEngine:
    """The graph of a compiled engine on ONNX Runtime; ``reason`` is why its plan cannot stand in.

    Raises BackendError when the graph was not kept, or computes in bfloat16.
    """
    if why := why_no_graph(bundle, manifest):
        raise BackendError(f"{bundle.path} cannot be checked on this machine: {why}, and {reason}")
    runner = onnx_runner(bundle.model_path(manifest.role), len(usable_cores()))
    return OnnxEngine(runner, manifest)


def why_no_graph(bundle: Bundle, manifest: EngineManifest) -> str | None:
    """Why a compiled engine's graph cannot run on ONNX Runtime; None when it can."""
    if not bundle.model_path(manifest.role).is_file():
        return "it was built with --no-onnx and has no graph"
    if manifest.kv.dtype is DType.BFLOAT16:
        return "ONNX Runtime does not compute in bfloat16"
    return None


def _score_with(engine: Engine) -> Score:
    def score(_bundle: Path, _role: str, ids: list[int]) -> Logits:
        return Text(engine).read(ids)

    return score
