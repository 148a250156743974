"""The checkpoints that a bundle was built from, found again."""

from __future__ import annotations

from engines.bundle import Bundle
from engines.errors import CheckpointError, MissingDependencyError, UsageError
from engines.manifest import EngineManifest
from export.checkpoint.api import Checkpoint, open_checkpoint
from export.checkpoint.resolve import resolve


def find_target(bundle: Bundle, name: str | None) -> Checkpoint:
    """The target's checkpoint: ``name``, or as it was named when the bundle was built.

    CheckpointError when it is not there, or is another one.
    """
    return _find(bundle, bundle.target, name)


def find_draft(bundle: Bundle, name: str | None) -> tuple[Checkpoint | None, str | None]:
    """The draft's checkpoint, or why it is missing, in a line; neither for a bundle without one.

    One that is asked for by ``name`` must be there: CheckpointError, UsageError.
    """
    if bundle.draft is None:
        if name is not None:
            raise UsageError(f"{bundle.path} has no draft; leave --draft out")
        return None, None
    try:
        return _find(bundle, bundle.draft, name), None
    except (CheckpointError, MissingDependencyError) as error:
        if name is not None:
            raise
        return None, f"the draft was not checked: {error}"


def _find(bundle: Bundle, engine: EngineManifest, name: str | None) -> Checkpoint:
    role, source = engine.role, engine.source
    wanted = source.name if name is None else name
    try:
        checkpoint = open_checkpoint(resolve(wanted))
    except CheckpointError as error:
        if name is not None:
            raise
        raise CheckpointError(
            f"the checkpoint of the {role} in {bundle.path} is not found under its name then: "
            f"{error}; name it with --{role}"
        ) from None
    if checkpoint.fingerprint() != source.fingerprint:
        raise CheckpointError(
            f"{wanted} is not the checkpoint that the {role} in {bundle.path} was "
            f"built from (fingerprint {checkpoint.fingerprint()[:12]}, expected "
            f"{source.fingerprint[:12]}); name the right one with --{role}"
        )
    return checkpoint
