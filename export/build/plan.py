"""Everything about a build that can be known, and refused, before a weight is read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from engines.manifest import DRAFT, TARGET, KvLayout
from export.build.compiled import Compiler, compile_bytes, find_compiler, plan_bytes
from export.build.estimate import EngineEstimate, estimate_engine, free_disk, free_memory
from export.build.key import build_key, builder_versions
from export.build.options import BuildOptions
from export.build.pair import DraftView, check_pair, check_target
from export.build.progress import Reporter
from export.build.writer import check_replaceable
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.resolve import resolve


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """A build that has passed every check."""

    options: BuildOptions
    target: Checkpoint
    tokenizer: bytes
    draft: DraftView | None
    fingerprints: dict[str, str]
    versions: dict[str, str]
    compiler: Compiler | None
    key: str

    @property
    def roles(self) -> tuple[str, ...]:
        return (TARGET,) if self.draft is None else (TARGET, DRAFT)

    def kv_layout(self, role: str) -> KvLayout:
        spec = self.target.spec if role == TARGET or self.draft is None else self.draft.spec
        return self.options.kv_layout(role, spec)

    def estimates(self) -> tuple[EngineEstimate, ...]:
        """Sizes of the engines, the target's first."""
        options = self.options
        specs = [self.target.spec] + ([] if self.draft is None else [self.draft.spec])
        return tuple(
            estimate_engine(role, spec, self.kv_layout(role), options)
            for role, spec in zip(self.roles, specs, strict=True)
        )

    def disk_bytes(self, estimate: EngineEstimate) -> int:
        """What an engine takes on disk while it is built: its graph, and its plan if it has one."""
        if self.compiler is None:
            return estimate.file_bytes
        layers = self.kv_layout(estimate.role).num_layers
        return estimate.file_bytes + plan_bytes(estimate.file_bytes, layers)

    def memory_bytes(self, estimate: EngineEstimate) -> int:
        """Memory at the peak of building an engine: of its graph, or of compiling it."""
        if self.compiler is None:
            return estimate.build_bytes
        layers = self.kv_layout(estimate.role).num_layers
        return max(estimate.build_bytes, compile_bytes(estimate.file_bytes, layers))


def make_plan(options: BuildOptions, reporter: Reporter) -> BuildPlan:
    """Open the checkpoints and check that they can be built, together and at these limits.

    Raises UsageError, CheckpointError, UnsupportedModelError, PairError; for a TensorRT backend
    MissingDependencyError and BackendError too.
    """
    check_replaceable(options.place)
    compiler = find_compiler(options)
    target = open_checkpoint(resolve(options.target))
    tokenizer = check_target(target, options.max_len)
    draft = None
    if options.draft is not None:
        source = open_checkpoint(resolve(options.draft))
        draft = check_pair(target, source, options.max_len)
        if source.spec.rope_theta != target.spec.rope_theta:
            reporter.say(
                f"note: rope_theta is {source.spec.rope_theta:g} in the draft and "
                f"{target.spec.rope_theta:g} in the target (fine for a draft trained that way)"
            )
    fingerprints = {TARGET: target.fingerprint()}
    if draft is not None:
        fingerprints[DRAFT] = draft.checkpoint.fingerprint()
    versions = builder_versions(compiler)
    both = [fingerprints[TARGET], fingerprints.get(DRAFT)]
    key = build_key(options, both, versions, compiler)
    return BuildPlan(options, target, tokenizer, draft, fingerprints, versions, compiler, key)


def check_room(plan: BuildPlan, reporter: Reporter) -> None:
    """UsageError when the disk cannot hold the bundle; a warning when memory looks short."""
    estimates = plan.estimates()
    needed = sum(plan.disk_bytes(estimate) for estimate in estimates) + len(plan.tokenizer)
    place = plan.options.place
    free = free_disk(_existing_folder(place))
    if needed > free:
        raise UsageError(
            f"{place} needs {in_words(needed)}, the disk has {in_words(free)} free; "
            "free some space or choose another place with --out"
        )
    peak, memory = max(plan.memory_bytes(estimate) for estimate in estimates), free_memory()
    if memory is not None and peak > memory:
        reporter.say(
            f"warning: the build takes about {in_words(peak)} of memory, "
            f"{in_words(memory)} are free"
        )


def in_words(num_bytes: int) -> str:
    """A size for people: 1.5 GB, 98.4 MB (powers of 1000)."""
    size = float(num_bytes)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _existing_folder(place: Path) -> Path:
    folder = Path(os.path.realpath(place))
    while not folder.is_dir():
        folder = folder.parent
    return folder
