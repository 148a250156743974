"""Can this bundle run here, at these limits? The answer is a list of reasons why not."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from engines.bundle import Bundle
from engines.errors import BundleIncompatibleError
from engines.manifest import SCHEMA

TENSORRT_BACKENDS = ("tensorrt-rtx", "tensorrt")
_BUILD = ["python", "-m", "export", "build"]
_FROM_TENSORRT = ("--compute-capability", "--no-onnx", "--precision", "--block")
"""Options of a TensorRT build that another backend has no use, or other values, for."""


def reasons(
    bundle: Bundle,
    *,
    backend: str,
    num_draft: int | None = None,
    branches: int | None = None,
    max_len: int | None = None,
    batch: int | None = None,
    builder: str | None = None,
    capability: str | None = None,
    on_gpu: bool | None = None,
) -> list[str]:
    """Why ``bundle`` cannot run on ``backend`` with K = ``num_draft``, W = ``branches`` and so on.

    ``builder`` (name and version) is the TensorRT that would read compiled engines, ``capability``
    the compute capability of the GPU ("8.9"), ``on_gpu`` whether the engines are to run on one.
    None asks for nothing. Each reason is one line and ends with the command that builds a bundle
    without it. An empty list means that it can run.
    """
    manifest = bundle.manifest
    found: list[str] = []

    def refuse(why: str, changes: Mapping[str, Sequence[str] | None] | None = None) -> None:
        found.append(f"{why}; rebuild: {_rebuild(manifest.rebuild, changes or {})}")

    schemas = {manifest.schema, *(engine.schema for engine in bundle.engines)} - {SCHEMA}
    if schemas:
        refuse(f"the bundle has schema {min(schemas)}, this version reads schema {SCHEMA}")
    if manifest.backend != backend:
        changes: dict[str, Sequence[str] | None] = {"--backend": [backend]}
        why = f"the bundle was built for {manifest.backend}, this session runs {backend}"
        if manifest.backend in TENSORRT_BACKENDS and backend not in TENSORRT_BACKENDS:
            changes |= _without_tensorrt(bundle, backend)
        refuse(why, changes)
    elif manifest.backend in TENSORRT_BACKENDS and on_gpu is False:
        refuse(
            f"the engines were compiled by {manifest.backend} and run on a GPU alone: "
            "--device cuda:0, or for the CPU",
            {"--backend": ["onnxruntime"]} | _without_tensorrt(bundle, "onnxruntime"),
        )
    for engine in bundle.engines:
        plan = engine.plan
        if plan is None:
            continue
        if builder is not None and plan.builder != builder:
            refuse(
                f"the {engine.role} engine was compiled by {plan.builder}, which alone can read "
                f"it, and {builder} is here"
            )
        if capability is not None and capability not in plan.capabilities:
            refuse(
                f"the {engine.role} engine was compiled for compute capability "
                f"{' '.join(plan.capabilities)}, this GPU has {capability}",
                {"--compute-capability": [capability]},
            )
    for name, option, wanted, built in (
        ("K (num_draft)", "--num-draft", num_draft, manifest.limits.num_draft),
        ("W (branches)", "--max-branches", branches, manifest.limits.max_branches),
        ("max_len", "--max-len", max_len, manifest.limits.max_len),
        ("batch", "--max-batch", batch, manifest.limits.max_batch),
    ):
        if wanted is not None and wanted > built:
            why = f"{name} = {wanted} is above the built limit {built}"
            refuse(why, {option: [str(wanted)]})
    if bundle.draft is not None:
        speaks, knows = bundle.draft.model.vocab_size, bundle.target.model.vocab_size
        if speaks > knows:
            refuse(f"the draft has {speaks} token ids, the target only {knows}")
    return found


def require(
    bundle: Bundle,
    *,
    backend: str,
    num_draft: int | None = None,
    branches: int | None = None,
    max_len: int | None = None,
    batch: int | None = None,
    builder: str | None = None,
    capability: str | None = None,
    on_gpu: bool | None = None,
) -> None:
    """BundleIncompatibleError with the first of ``reasons``, if there is one."""
    found = reasons(
        bundle,
        backend=backend,
        num_draft=num_draft,
        branches=branches,
        max_len=max_len,
        batch=batch,
        builder=builder,
        capability=capability,
        on_gpu=on_gpu,
    )
    if found:
        raise BundleIncompatibleError(f"{bundle.path}: {found[0]}")


def _without_tensorrt(bundle: Bundle, backend: str) -> dict[str, Sequence[str] | None]:
    """Changes to the build command of a compiled bundle that make it one for ``backend``, at
    another place than the compiled one's."""
    return {**dict.fromkeys(_FROM_TENSORRT), "--out": [f"{bundle.path}-{backend}"]}


def _rebuild(line: str, changes: Mapping[str, Sequence[str] | None]) -> str:
    """The bundle's build command with the values of its options changed, None for dropped.

    A line that is no such command stays as it is.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return line
    if not changes or words[: len(_BUILD)] != _BUILD:
        return line
    for option, values in changes.items():
        start = words.index(option) if option in words else len(words)
        end = next((i for i in range(start + 1, len(words)) if words[i].startswith("--")), None)
        words[start:end] = [] if values is None else [option, *values]
    return shlex.join(words)
