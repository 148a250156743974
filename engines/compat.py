"""Can this bundle run here, at these limits? The answer is a list of reasons why not."""

from __future__ import annotations

import shlex

from engines.bundle import Bundle
from engines.errors import BundleIncompatibleError
from engines.manifest import SCHEMA


def reasons(
    bundle: Bundle,
    *,
    backend: str,
    num_draft: int | None = None,
    branches: int | None = None,
    max_len: int | None = None,
    batch: int | None = None,
) -> list[str]:
    """Why ``bundle`` cannot run on ``backend`` with K = ``num_draft``, W = ``branches`` and so on.

    None asks for nothing. Each reason is one line and ends with the command that builds a bundle
    without it. An empty list means that it can run.
    """
    manifest = bundle.manifest
    found: list[str] = []

    def refuse(why: str, option: str | None = None, value: object = None) -> None:
        found.append(f"{why}; rebuild: {_rebuild(manifest.rebuild, option, value)}")

    schemas = {manifest.schema, *(engine.schema for engine in bundle.engines)} - {SCHEMA}
    if schemas:
        refuse(f"the bundle has schema {min(schemas)}, this version reads schema {SCHEMA}")
    if manifest.backend != backend:
        refuse(
            f"the bundle was built for {manifest.backend}, this session runs {backend}",
            "--backend",
            backend,
        )
    for name, option, wanted, built in (
        ("K (num_draft)", "--num-draft", num_draft, manifest.limits.num_draft),
        ("W (branches)", "--max-branches", branches, manifest.limits.max_branches),
        ("max_len", "--max-len", max_len, manifest.limits.max_len),
        ("batch", "--max-batch", batch, manifest.limits.max_batch),
    ):
        if wanted is not None and wanted > built:
            refuse(f"{name} = {wanted} is above the built limit {built}", option, wanted)
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
) -> None:
    """BundleIncompatibleError with the first of ``reasons``, if there is one."""
    found = reasons(
        bundle,
        backend=backend,
        num_draft=num_draft,
        branches=branches,
        max_len=max_len,
        batch=batch,
    )
    if found:
        raise BundleIncompatibleError(f"{bundle.path}: {found[0]}")


def _rebuild(line: str, option: str | None, value: object) -> str:
    """The bundle's build command with ``option`` set to ``value``."""
    try:
        words = shlex.split(line)
    except ValueError:
        return line
    if option is None or option not in words[:-1]:
        return line
    words[words.index(option) + 1] = str(value)
    return shlex.join(words)
