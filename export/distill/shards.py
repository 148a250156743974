"""Training text on disk, a shard at a time: sequences, and the target's states beside them.

A shard is ``NAME.npz`` (as ``corpus.load`` reads it, and a few notes) and, for soft labels,
``NAME.npy``: float16 [tokens, C], the target's final-norm output at every token but, where it is
not known, the last of a sequence (zeros, and left out). The .npz is written last and renamed into
place: a shard is there as a whole or not at all, and an interrupted run loses the one it was at.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from export.disk import sync
from export.distill.corpus import UNREADABLE, Sample, load

_DIGEST_LEN = 16


@dataclass(frozen=True, slots=True)
class Notes:
    """What a later run wants to know of a shard that the target wrote."""

    seconds: float = 0.0  # that it took
    answered: tuple[str, ...] = ()  # ``digest`` of each of the user's prompts that it answers


def digest(text: str) -> str:
    """What a prompt is known by, whichever file it stands in."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:_DIGEST_LEN]


def write(folder: Path, name: str, samples: Sequence[Sample], notes: Notes = Notes()) -> None:
    """Add the shard ``name``; states come from the samples, all of them having some or none.

    Raises UsageError naming the file that cannot be written, as on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if all(sample.states is not None for sample in samples):
        total = sum(len(sample) for sample in samples)
        width = samples[0].states.shape[1] if samples[0].states is not None else 0
        block = np.zeros((total, width), np.float16)
        end = 0
        for sample in samples:
            if sample.states is not None:
                block[end : end + len(sample.states)] = sample.states
            end += len(sample)
        _write_whole(folder / f"{name}.npy", block)
    else:  # a run that was killed here may have left states of other text
        (folder / f"{name}.npy").unlink(missing_ok=True)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "ids": np.concatenate([sample.ids for sample in samples]).astype(np.uint32),
        "lens": np.array([len(sample) for sample in samples], np.int32),
        "answer_start": np.array([sample.answer_start for sample in samples], np.int32),
        "temperature": np.array([sample.temperature for sample in samples], np.float32),
        "known": np.array(
            [0 if sample.states is None else len(sample.states) for sample in samples], np.int32
        ),
        "seconds": np.array(notes.seconds),
        "answered": np.array(notes.answered, f"U{_DIGEST_LEN}"),
    }
    _write_whole(folder / f"{name}.npz", arrays)


def names(folder: Path, prefix: str) -> list[str]:
    """Complete shards whose name starts with ``prefix``, in order."""
    return sorted(path.stem for path in folder.glob(f"{prefix}*.npz"))


def notes(folder: Path, name: str) -> Notes:
    """Raises UsageError if damaged."""
    with _opened(folder / f"{name}.npz") as archive:
        # Older shards name the prompts by their places in a file that may be another by now.
        answered = archive["answered"].tolist() if "answered" in archive else ()
        return Notes(float(archive["seconds"]), tuple(answered))


def read(folder: Path, shard_names: Sequence[str], vocab_size: int) -> Iterator[Sample]:
    """The sequences of these shards; states are mapped, not read. Raises UsageError if damaged."""
    for name in shard_names:
        path = folder / f"{name}.npz"
        try:
            samples = load([path], vocab_size)
        except UsageError as error:
            reason = str(error).removeprefix(f"--data {path}: ")
            raise _damaged(path, reason) from None
        states = _mapped(folder / f"{name}.npy", sum(len(sample) for sample in samples))
        with _opened(path) as archive:
            lengths = archive["known"] if "known" in archive else np.zeros(len(samples), np.int64)
        if lengths.shape != (len(samples),) or lengths.dtype.kind not in "iu":
            raise _damaged(path, f"expected {len(samples)} lengths of states")
        known = lengths.tolist()
        if states is None:
            if any(known):
                raise _damaged(path, f"{name}.npy, the states of its text, is missing")
            yield from samples
            continue
        end = 0
        for sample, num_known in zip(samples, known, strict=True):
            yield replace(sample, states=states[end : end + num_known])
            end += len(sample)


@contextmanager
def _opened(path: Path) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            yield archive
    except OSError as error:
        if error.errno is None:  # of the content, not of the disk
            raise _damaged(path, error) from None
        raise UsageError(f"{path} cannot be read ({error.strerror})") from None
    except UNREADABLE as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, reason: object) -> UsageError:
    other = path.with_suffix(".npy" if path.suffix == ".npz" else ".npz")
    told = " ".join(str(reason).split())
    return UsageError(f"{path}: damaged ({told}); remove it and {other.name} beside it")


def _mapped(path: Path, num_tokens: int) -> npt.NDArray[np.float16] | None:
    try:
        # Not np.load, which opens an archive under this name, too.
        states: npt.NDArray[np.float16] = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise _damaged(path, error) from None
    if states.dtype != np.float16 or states.ndim != 2 or len(states) != num_tokens:
        raise UsageError(f"{path}: does not belong to its .npz; remove both")
    return states


def _write_whole(
    path: Path, content: npt.NDArray[np.generic] | dict[str, npt.NDArray[np.generic]]
) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as stream:
            if isinstance(content, dict):
                np.savez_compressed(stream, allow_pickle=False, **content)
            else:
                np.save(stream, content, allow_pickle=False)
        sync(partial)
        partial.rename(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror or error}); make room on its disk, or "
            "give another folder by --work"
        ) from None
    finally:
        partial.unlink(missing_ok=True)
