"""Shards of training text that were damaged on disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from export.distill import shards
from export.distill.corpus import Sample

NAME = "written-00000"
READINGS: tuple[Callable[[Path], object], ...] = (
    lambda folder: shards.notes(folder, NAME),
    lambda folder: list(shards.read(folder, [NAME], vocab_size=11)),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One shard of one sequence, with states."""
    states = np.zeros((5, 4), np.float16)
    shards.write(tmp_path, NAME, [Sample(np.arange(6), 2, 0.0, states)])
    return tmp_path


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "content", [None, b"", b"PK\x03\x04 cut off", b"\x93NUMPY\x01\x00", b"text"]
)
@pytest.mark.parametrize("reading", READINGS)
def test_a_damaged_shard_is_named_in_one_line_with_what_to_remove(
    folder: Path, content: bytes | None, reading: Callable[[Path], object]
) -> None:
    """As a copy that was broken off leaves it: the run ended in a traceback before it began."""
    path = folder / f"{NAME}.npz"
    path.write_bytes(path.read_bytes()[:200] if content is None else content)
    told = refused(lambda: reading(folder))
    assert told.startswith(f"{path}: damaged (")
    assert told.endswith(f"; remove it and {NAME}.npy beside it")


def test_flipped_bits_that_look_like_a_password_are_damage(folder: Path) -> None:
    path = folder / f"{NAME}.npz"
    content = path.read_bytes()
    for at in [found.start() for found in re.finditer(rb"PK\x01\x02", content)]:
        content = content[: at + 8] + bytes([content[at + 8] | 1]) + content[at + 9 :]
    path.write_bytes(content)
    for reading in READINGS:
        assert "damaged" in refused(lambda reading=reading: reading(folder))  # type: ignore[misc]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00v\x00{", b"text"])
def test_damaged_states_are_named_in_one_line_with_what_to_remove(
    folder: Path, content: bytes
) -> None:
    path = folder / f"{NAME}.npy"
    path.write_bytes(content)
    told = refused(lambda: READINGS[1](folder))
    assert told.startswith(f"{path}: damaged (")
    assert told.endswith(f"; remove it and {NAME}.npz beside it")


@pytest.mark.parametrize(
    ("old", "new"), [(b")", b"("), (b"descr", b"de'cr"), (b"'shape'", b"'shap\xff'")]
)
def test_a_header_that_python_cannot_read_is_damage(folder: Path, old: bytes, new: bytes) -> None:
    """numpy reads a header as Python's own text, and fails as Python's parser does."""
    path = folder / f"{NAME}.npy"
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    assert "damaged" in refused(lambda: READINGS[1](folder))


def test_an_archive_in_the_place_of_the_states_is_refused(folder: Path) -> None:
    path = folder / f"{NAME}.npy"
    path.write_bytes((folder / f"{NAME}.npz").read_bytes())
    assert "damaged" in refused(lambda: READINGS[1](folder))


def test_states_that_were_removed_are_missed(folder: Path) -> None:
    """It was "written with --labels hard", of text that was not."""
    (folder / f"{NAME}.npy").unlink()
    assert "the states of its text, is missing" in refused(lambda: READINGS[1](folder))


def test_lengths_that_do_not_belong_to_the_sequences_are_damage(folder: Path) -> None:
    path = folder / f"{NAME}.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    for known in (np.array(5), np.array([5.0]), np.array([2, 3])):
        np.savez(path, **{**arrays, "known": known})
        assert "expected 1 lengths of states" in refused(lambda: READINGS[1](folder))


def test_a_shard_that_cannot_be_read_is_not_called_damaged(folder: Path) -> None:
    """Somebody else's file, or one on a disk that fails, is not to be removed."""
    (folder / f"{NAME}.npz").unlink()
    (folder / f"{NAME}.npz").mkdir()
    told = refused(lambda: READINGS[0](folder))
    assert "cannot be read" in told
    assert "remove" not in told
