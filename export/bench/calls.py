"""Which calls of an engine are timed: one for each kind that it was built for."""

from __future__ import annotations

from dataclasses import dataclass

from engines.errors import CapacityError, UsageError
from engines.manifest import DRAFT, EngineManifest
from engines.profiles import ShapeProfile, pick_bucket, shape_profiles
from export.bench.data_loader import Call

DEFAULT_LENGTH = 256
"""Tokens of text in the cache before a call; less where a bundle holds less."""


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A kind of call at one size: prompt, step (plain decoding), verify, root (the draft's pass
    before it forks), branch. ``profile`` is the place of its shapes in a plan.

    ``tokens`` of text are read or written by it for certain; 0 where acceptance decides how many.
    """

    kind: str
    profile: int
    call: Call
    tokens: int


def timed_calls(
    manifest: EngineManifest, *, batch: int, length: int | None, num_verified: int | None = None
) -> tuple[TimedCall, ...]:
    """The calls of one engine, ``batch`` slots (prompts: one slot), L of a bucket.

    Sizes are those the profiles call typical: T = R = 1, K + 1 or W, a prompt chunk with R = 1;
    ``num_verified`` is another T = R for verifications. A prompt chunk that does not fit after
    ``length`` tokens of text begins earlier.
    Raises CapacityError beyond the built limits, UsageError for a length or batch below 1, or a
    verification of less than 2 tokens.
    """
    limits, kv = manifest.limits, manifest.kv
    length = _checked_length(manifest, length)
    if num_verified is not None:
        _check_verified(limits.num_draft + 1, num_verified)
    if batch < 1:
        raise UsageError(f"--batch is {batch}, it must be at least 1")
    if batch > limits.max_batch:
        raise CapacityError(
            f"--batch {batch} is above the {limits.max_batch} that the bundle was built for; "
            f"rebuild it with --max-batch {batch}"
        )
    found = []
    for index, profile in enumerate(profiles_of(manifest)):
        tokens, logits = profile.tokens.typical, profile.logits.typical
        if profile.name == "verify" and num_verified is not None:
            tokens = logits = num_verified
        tokens = min(tokens, kv.trunk_rows)
        logits = min(logits, tokens)
        kind = "root" if (manifest.role, profile.name) == (DRAFT, "step") else profile.name
        branches = kind == "branch"
        slots = min(batch, profile.batch.typical)
        new_rows = 0 if branches else tokens
        text = min(length, kv.trunk_rows - new_rows)
        rows = pick_bucket(manifest.lengths, kv.scratch_rows + text + new_rows)
        found.append(
            TimedCall(
                kind,
                index,
                Call(slots, tokens, logits, rows, text, kv.scratch_rows, branches),
                tokens={"step": slots, "root": slots, "prompt": slots * tokens}.get(kind, 0),
            )
        )
    return tuple(found)


def profiles_of(manifest: EngineManifest) -> tuple[ShapeProfile, ...]:
    """A plan's own profiles; for an engine without a plan, those it would have."""
    if manifest.plan is not None:
        return manifest.plan.profiles
    limits = manifest.limits
    return shape_profiles(
        manifest.role,
        max_batch=limits.max_batch,
        num_draft=limits.num_draft,
        max_branches=limits.max_branches,
        rows=manifest.kv.rows,
    )


def _checked_length(manifest: EngineManifest, length: int | None) -> int:
    """Tokens of text; the next one, at least, must fit behind them."""
    most = manifest.limits.max_len - 1
    if length is None:
        return min(DEFAULT_LENGTH, most)
    if length < 1:
        raise UsageError(f"--length is {length}, it must be at least 1")
    if length > most:
        raise CapacityError(
            f"--length {length} leaves no room: the bundle holds {most + 1} tokens, prompt and "
            f"answer together; at most --length {most}, or rebuild with a larger --max-len"
        )
    return length


def _check_verified(most: int, num: int) -> None:
    if num < 2:
        raise UsageError(f"--tokens is {num}, a verification has at least 2")
    if num > most:
        raise CapacityError(
            f"--tokens {num} is above the {most} that the bundle was built to verify at once; "
            f"rebuild it with --num-draft {num - 1}"
        )
