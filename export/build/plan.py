"""Everything about a build that can be known, and refused, before a weight is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from engines.manifest import DRAFT, TARGET, KvLayout
from export.build.compiled import Compiler, find_compiler
from export.build.estimate import (
    CERTAIN_SHARE,
    LARGEST_GPU_BYTES,
    EngineEstimate,
    estimate_engine,
    free_disk,
    free_memory,
    total_memory,
)
from export.build.key import build_key, builder_versions
from export.build.options import BuildOptions
from export.build.pair import (
    DraftView,
    TargetView,
    check_pair,
    check_target,
    pair_notes,
    target_notes,
    view_target,
)
from export.build.progress import Reporter
from export.build.writer import check_replaceable
from export.checkpoint.api import open_checkpoint
from export.checkpoint.resolve import resolve
from export.checkpoint.weights import check_places
from export.graph.api import require_fit
from export.tensorrt.attention import require_attention_kernel


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A build that has passed every check."""

    options: BuildOptions
    target: TargetView
    tokenizer: bytes
    draft: DraftView | None
    fingerprints: dict[str, str]
    versions: dict[str, str]
    compiler: Compiler | None
    key: str

    @property
    def roles(self) -> tuple[str, ...]:
        return (TARGET,) if self.draft is None else (TARGET, DRAFT)

    def view(self, role: str) -> TargetView | DraftView:
        """One of the models as it is built."""
        if role == TARGET:
            return self.target
        assert self.draft is not None
        return self.draft

    def kv_layout(self, role: str) -> KvLayout:
        return self.options.kv_layout(role, self.view(role).spec)

    def estimates(self) -> tuple[EngineEstimate, ...]:
        """Sizes of the engines, the target's first."""
        options = self.options
        return tuple(
            estimate_engine(role, self.view(role).spec, self.kv_layout(role), options)
            for role in self.roles
        )


def make_plan(options: BuildOptions, reporter: Reporter) -> BuildPlan:
    """Open the checkpoints and check that they can be built, together and at these limits.

    Raises UsageError, CheckpointError, UnsupportedModelError, PairError; for a TensorRT backend
    MissingDependencyError and BackendError too.
    """
    check_replaceable(options.place)
    compiler = find_compiler(options)
    checkpoint = open_checkpoint(resolve(options.target))
    tokenizer = check_target(checkpoint, options.max_len)
    target, draft = view_target(checkpoint), None
    notes = target_notes(target)
    if options.draft is not None:
        source = open_checkpoint(resolve(options.draft))
        draft = check_pair(checkpoint, source, options.max_len)
        notes += pair_notes(checkpoint, source)
    for each in [checkpoint] if draft is None else [checkpoint, draft.checkpoint]:
        check_places(each.spec, each.tensor_names(), str(each.path))
    for note in notes:
        reporter.say(note)
    fingerprints = {TARGET: checkpoint.fingerprint()}
    if draft is not None:
        fingerprints[DRAFT] = draft.checkpoint.fingerprint()
    versions = builder_versions(compiler)
    both = [fingerprints[TARGET], fingerprints.get(DRAFT)]
    key = build_key(options, both, versions, compiler)
    plan = BuildPlan(options, target, tokenizer, draft, fingerprints, versions, compiler, key)
    for role in plan.roles:  # else the draft is refused when the target's engine is written
        require_fit(
            role,
            plan.view(role).spec,
            plan.kv_layout(role),
            options.limits,
            options.backend,
            options.precision,
            options.block,
        )
    if compiler is not None:
        _check_attention(plan, compiler)
        _check_caches(plan)
    return plan


def _check_attention(plan: BuildPlan, compiler: Compiler) -> None:
    for view in map(plan.view, plan.roles):
        require_attention_kernel(
            compiler.vendor,
            view.checkpoint.name,
            num_heads=view.spec.num_heads,
            head_dim=view.spec.head_dim,
            dtype=plan.options.arithmetic.activation,
        )


def _check_caches(plan: BuildPlan) -> None:
    """A compiled engine's caches have their full size from the start, on one GPU.

    Which GPU that is, the machine that builds need not know.
    """
    options, estimates = plan.options, plan.estimates()
    loaded = sum(estimate.plan_bytes for estimate in estimates)
    caches = sum(estimate.kv_bytes for estimate in estimates)
    if loaded + caches <= LARGEST_GPU_BYTES:
        return
    fitting = max(0, LARGEST_GPU_BYTES - loaded) * options.max_batch // caches
    way_out = f"--max-batch {fitting} or less" if fitting else "a smaller --max-len"
    raise UsageError(
        f"--max-batch {options.max_batch} with --max-len {options.max_len} needs "
        f"{in_words(caches)} for caches and {in_words(loaded)} for the engines, the largest GPU "
        f"has {in_words(LARGEST_GPU_BYTES)}; use {way_out}"
    )


def check_room(plan: BuildPlan, reporter: Reporter) -> None:
    """UsageError when the disk cannot hold the bundle or the memory what building it takes; a
    warning when memory looks short."""
    estimates = plan.estimates()
    needed = sum(estimate.disk_bytes for estimate in estimates) + len(plan.tokenizer)
    place = plan.options.place
    free = free_disk(_existing_folder(place))
    if needed > free:
        raise UsageError(
            f"{place} needs {in_words(needed)}, the disk has {in_words(free)} free; "
            "free some space or choose another place with --out"
        )
    _check_memory(max(estimate.peak_bytes for estimate in estimates), reporter)


def _check_memory(peak: int, reporter: Reporter) -> None:
    """Of the memory that building takes on this machine."""
    total, free = total_memory(), free_memory()
    if total is not None and CERTAIN_SHARE * peak > total:
        raise UsageError(
            f"the build takes about {in_words(peak)} of memory, this machine has "
            f"{in_words(total)}; build on a larger one (the bundle can be moved) or use a smaller "
            "checkpoint"
        )
    if free is not None and peak > free:
        reporter.say(
            f"warning: the build takes about {in_words(peak)} of memory, {in_words(free)} are free"
        )


def in_words(num_bytes: int) -> str:
    """A size for people: 1.5 GB, 98.4 MB (powers of 1000)."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def _existing_folder(place: Path) -> Path:
    folder = Path(os.path.realpath(place))
    while not folder.is_dir():
        folder = folder.parent
    return folder
