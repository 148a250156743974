"""The build itself: a bundle written beside its place, checked, and put there by one rename."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engines.bundle import Bundle, open_bundle
from engines.errors import BundleError
from engines.fidelity import WeightFidelity
from export.build.options import BuildOptions
from export.build.plan import BuildPlan, check_room, in_words, make_plan
from export.build.progress import Reporter, Silent
from export.build.stage import BuildGraph, stored_types, write_bundle, write_fidelity
from export.build.writer import BundleWriter
from export.check.fidelity import in_words as fidelity_in_words
from export.checkpoint.api import Checkpoint
from export.graph.precision import ONNXRUNTIME
from export.packages import require

Verify = Callable[[Path, Checkpoint, Checkpoint | None], object]
"""Compares a bundle's engines with the target's and the draft's checkpoint; raises SsdError when
they differ."""
WriteTwin = Callable[[], Bundle]
"""Builds the same engines for ONNX Runtime with float32 weights, in a place of their own."""
Measure = Callable[[Bundle, WriteTwin, Reporter], Mapping[str, WeightFidelity]]
"""Measures a bundle's engines, by role, against their twins; what it leaves out it explains."""


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The finished bundle. ``verification`` is what ``verify`` returned, None without one."""

    bundle: Bundle
    cache_hit: bool
    seconds: float
    verification: object


def build(
    options: BuildOptions,
    *,
    reporter: Reporter | None = None,
    build_graph: BuildGraph | None = None,
    verify: Verify | None = None,
    measure: Measure | None = None,
) -> BuildResult:
    """Build the bundle that ``options`` ask for, or find that it is there already.

    ``options.place`` changes in one step, at the end: after any failure it is what it was. A
    second builder of the same place waits for the first. ``verify`` sees the new bundle before
    it is published; so does ``measure`` where weights were quantised, and its figures become part
    of the bundle. Raises UsageError, CheckpointError, PairError, MissingDependencyError,
    BackendError.
    """
    started = time.monotonic()
    reporter = reporter or Silent()
    plan = make_plan(options, reporter)
    place = options.place

    def waiting() -> None:
        reporter.say(f"another build of {place} is running; waiting for it")

    with BundleWriter(place, waiting) as writer:
        present = find_present(plan)
        if present is not None:
            reporter.say(f"{place} is up to date (cache hit, {plan.key[:12]}); nothing to build")
            for engine in present.engines:
                if engine.fidelity is not None:
                    reporter.say(f"{engine.role}: {fidelity_in_words(engine.fidelity)}")
            verification = _verified(plan, place, verify)
            return BuildResult(present, True, time.monotonic() - started, verification)
        check_room(plan, reporter)
        for role in plan.roles:
            stored = ", ".join(stored_types(plan.view(role).checkpoint))
            reporter.say(f"{role}: stored as {stored}; {options.describe_precision}")
        graphs, staged = build_graph or _build_graph(), writer.stage()
        write_bundle(plan, staged, graphs, reporter)
        if measure is not None and options.arithmetic.is_quantised:
            _measure(plan, writer, staged, graphs, measure, reporter)
        verification = _verified(plan, staged, verify)
        writer.publish()
    bundle = open_bundle(place)
    reporter.say(f"{place} is ready: {in_words(bundle.num_bytes)}")
    return BuildResult(bundle, False, time.monotonic() - started, verification)


def find_present(plan: BuildPlan) -> Bundle | None:
    """The bundle that ``plan`` would build, if it stands in its place already and is whole."""
    try:
        bundle = open_bundle(plan.options.place, hashes="all")
    except BundleError:
        return None
    return bundle if bundle.manifest.build_key == plan.key else None


def _verified(plan: BuildPlan, folder: Path, verify: Verify | None) -> object:
    if verify is None:
        return None
    draft = None if plan.draft is None else plan.draft.checkpoint
    return verify(folder, plan.target.checkpoint, draft)


def _measure(
    plan: BuildPlan,
    writer: BundleWriter,
    staged: Path,
    build_graph: BuildGraph,
    measure: Measure,
    reporter: Reporter,
) -> None:
    options = dataclasses.replace(
        plan.options,
        backend=ONNXRUNTIME,
        precision="fp32",
        block=0,
        capabilities=(),
        keep_onnx=True,
    )
    exact = dataclasses.replace(plan, options=options, compiler=None)

    def write_twin() -> Bundle:
        folder = writer.stage_twin()
        write_bundle(exact, folder, build_graph, reporter)
        return open_bundle(folder)

    measured = measure(open_bundle(staged), write_twin, reporter)
    writer.drop_twin()
    write_fidelity(staged, measured)


def _build_graph() -> BuildGraph:
    for module, package in (("onnx", "onnx"), ("onnx_ir", "onnx-ir")):
        require(module, package, "export", "building a bundle")
    from export.graph.api import build_graph

    return build_graph
