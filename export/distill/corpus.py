"""Token sequences to train on: what the target answered, with where each answer begins."""

from __future__ import annotations

import hashlib
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError

# Batches whose sequences are sorted by length together: little padding, little bias.
SORT_WINDOW = 64

UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError),
)
"""What reading an array of a file raises that is no npz archive, or a damaged one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence: prompt and answer ids, and the index of the first answer id."""

    ids: npt.NDArray[np.int64]  # [tokens]
    answer_start: int
    temperature: float  # of the answer; 0 = greedy
    # The target's final-norm output at the first tokens (all, or all but the last), [tokens, C].
    states: npt.NDArray[np.float16] | None = None

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded sequences.

    ``labels[b, t]`` is the id after position t where that is part of an answer, else -1. ``states``
    are the target's, at the places ``known`` of the flattened [B * T] positions.
    """

    tokens: npt.NDArray[np.int64]  # [B, T]
    labels: npt.NDArray[np.int64]  # [B, T]
    num_tokens: int  # padding excluded
    known: npt.NDArray[np.int64]  # [N]
    states: npt.NDArray[np.float16]  # [N, C]


def load(paths: Sequence[Path], vocab_size: int) -> list[Sample]:
    """Read npz files with arrays ids, lens, answer_start and temperature.

    Raises UsageError for a file that is missing, no such archive, or inconsistent.
    """
    return [sample for path in paths for sample in _load_file(path, vocab_size)]


def digest(samples: Iterable[Sample]) -> str:
    """What tells one text from another, its order included: 16 hexadecimal digits."""
    found = hashlib.sha256()
    for sample in samples:
        found.update(np.array([len(sample), sample.answer_start], np.int64).tobytes())
        found.update(sample.ids.tobytes())
    return found.hexdigest()[:16]


def cut(samples: Sequence[Sample], max_tokens: int) -> list[Sample]:
    """Sequences cut at ``max_tokens``, without those that then have no answer token."""
    return [
        replace(
            sample,
            ids=sample.ids[:max_tokens],
            states=None if sample.states is None else sample.states[:max_tokens],
        )
        for sample in samples
        if sample.answer_start < min(len(sample), max_tokens)
    ]


def hold_out(
    samples: Sequence[Sample], share: float, seed: int
) -> tuple[list[Sample], list[Sample]]:
    """Split into (training, held out). Sequences with one prompt stay together: no answer leaks."""
    by_prompt: dict[bytes, list[Sample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.ids[: sample.answer_start].tobytes(), []).append(sample)
    groups = list(by_prompt.values())
    shuffled = [groups[i] for i in np.random.default_rng(seed).permutation(len(groups))]
    num_held = max(1, round(share * len(shuffled)))
    if num_held >= len(shuffled):
        raise UsageError(
            f"the training data has {len(shuffled)} different prompt(s); at least 2 are needed, "
            "one of them held out: give more --data, or more --write-minutes to a new run"
        )
    held, kept = shuffled[:num_held], shuffled[num_held:]
    return [s for group in kept for s in group], [s for group in held for s in group]


def order(lengths: Sequence[int], batch: int, rng: np.random.Generator) -> list[list[int]]:
    """One pass over sequences: their indices in batches, random, but of like length together."""
    shuffled = rng.permutation(len(lengths)).tolist()
    window = batch * SORT_WINDOW
    parts: list[list[int]] = []
    for start in range(0, len(shuffled), window):
        chosen = sorted(shuffled[start : start + window], key=lambda index: lengths[index])
        found = [chosen[i : i + batch] for i in range(0, len(chosen), batch)]
        parts += [found[index] for index in rng.permutation(len(found))]
    return parts


def collate(samples: Sequence[Sample]) -> Batch:
    """Pad on the right, and label the answers."""
    width = max(len(sample) for sample in samples)
    tokens = np.zeros((len(samples), width), np.int64)
    labels = np.full((len(samples), width), -1, np.int64)
    known, states = [np.zeros(0, np.int64)], []
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = sample.ids
        labels[row, sample.answer_start - 1 : len(sample) - 1] = sample.ids[sample.answer_start :]
        if sample.states is not None:
            known.append(row * width + np.arange(len(sample.states)))
            states.append(sample.states)
    return Batch(
        tokens,
        labels,
        sum(len(sample) for sample in samples),
        np.concatenate(known),
        np.concatenate(states) if states else np.zeros((0, 0), np.float16),
    )


def _load_file(path: Path, vocab_size: int) -> list[Sample]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            ids, lens, starts, temperature = (
                archive[name] for name in ("ids", "lens", "answer_start", "temperature")
            )
    except FileNotFoundError:
        raise UsageError(f"--data {path}: no such file") from None
    except UNREADABLE as error:
        raise UsageError(
            f"--data {path}: expected an npz archive with the arrays ids, lens, answer_start and "
            f"temperature, found: {' '.join(str(error).split())}"
        ) from None
    arrays = (ids, lens, starts, temperature)
    kinds = "".join(array.dtype.kind for array in arrays).replace("u", "i")
    if kinds != "iiif" or any(array.ndim != 1 for array in arrays):
        raise UsageError(
            f"--data {path}: ids, lens and answer_start must be rows of integers, "
            "temperature a row of floats"
        )
    if not (len(lens) == len(starts) == len(temperature) and lens.sum() == len(ids)):
        raise UsageError(
            f"--data {path}: expected lens, answer_start and temperature of one length and "
            f"sum(lens) ids; found {len(lens)}, {len(starts)}, {len(temperature)}, "
            f"and {len(ids)} ids"
        )
    if len(lens) == 0 or (starts < 1).any() or (starts > lens).any():
        raise UsageError(f"--data {path}: expected sequences with 1 <= answer_start <= length")
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if outside.size:
        raise UsageError(
            f"--data {path}: token id {int(outside[0])} is outside the target's vocabulary of "
            f"{vocab_size}; the data was written with another tokenizer"
        )
    parts = np.split(ids.astype(np.int64), np.cumsum(lens)[:-1])
    return [
        Sample(part, int(start), float(heat))
        for part, start, heat in zip(parts, starts, temperature, strict=True)
    ]
