from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.errors import CheckpointError
from export.checkpoint.api import open_checkpoint
from tests.helpers.checkpoints import make_draft, make_llama


def test_offsets_become_target_ids(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_draft(tmp_path, draft_vocab=300, vocab=320))
    ids = checkpoint.draft_map()
    assert ids is not None
    assert ids.dtype == np.int32
    assert ids.shape == (300,)
    rest = np.random.default_rng(100).choice(np.arange(3, 320), size=297, replace=False)
    np.testing.assert_array_equal(ids, [0, 1, 2, *np.sort(rest)])
    assert checkpoint.spec.draft_vocab_size == 300
    assert checkpoint.tensor("lm_head.weight").shape == (300, 32)


def test_a_draft_that_borrows_the_embedding_has_none_and_hides_its_map(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_draft(tmp_path))
    assert checkpoint.spec.embeddings_from_target
    assert not {"model.embed_tokens.weight", "d2t"} & set(checkpoint.tensor_names())


def test_whole_vocabulary_has_no_map(tmp_path: Path) -> None:
    assert open_checkpoint(make_llama(tmp_path)).draft_map() is None


def test_map_is_the_callers_own(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(make_draft(tmp_path))
    first = checkpoint.draft_map()
    assert first is not None
    expected = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(checkpoint.draft_map(), expected)


def test_reduced_vocabulary_without_a_map_is_refused(tmp_path: Path) -> None:
    """V7: without d2t acceptance collapses silently."""
    make_draft(tmp_path, with_map=False)
    with pytest.raises(CheckpointError, match="draft_vocab_size 300 is below vocab_size 320"):
        open_checkpoint(tmp_path)


def test_ids_stored_in_place_of_offsets_are_refused(tmp_path: Path) -> None:
    """V8: an arange map (absolute ids) doubles every id."""
    make_draft(tmp_path, offsets=np.arange(300))
    with pytest.raises(CheckpointError, match=r"draft id 160 to target id 320.*must hold offsets"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("position", "offset", "message"),
    [(0, -1, "target id -1, outside"), (299, 21, "target id 320, outside"), (5, -1, "target id 4")],
)
def test_ids_out_of_range_or_met_twice_are_refused(
    tmp_path: Path, position: int, offset: int, message: str
) -> None:
    """V8. The last case maps two draft ids to one target id."""
    offsets = np.zeros(300, np.int64)
    offsets[position] = offset
    make_draft(tmp_path, offsets=offsets)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_map_of_another_length_is_refused(tmp_path: Path) -> None:
    make_draft(tmp_path, offsets=np.zeros(299, np.int64))
    with pytest.raises(CheckpointError, match=r"shape \[299\], expected \[300\]"):
        open_checkpoint(tmp_path)


def test_map_that_is_not_of_integers_is_refused(tmp_path: Path) -> None:
    make_draft(tmp_path, with_map=False, tensors={"d2t": np.zeros(300, np.float32)})
    with pytest.raises(CheckpointError, match="d2t must be one of I64, I32, BOOL, found F32"):
        open_checkpoint(tmp_path)


def test_map_without_its_size_in_the_config_is_refused(tmp_path: Path) -> None:
    make_llama(tmp_path, tensors={"d2t": np.zeros(300, np.int64)})
    with pytest.raises(CheckpointError, match="no draft_vocab_size"):
        open_checkpoint(tmp_path)


def test_mask_must_agree_with_the_map(tmp_path: Path) -> None:
    """V8: d2t and t2d of different training runs."""
    offsets = np.zeros(300, np.int64)
    mask = np.arange(320) < 300
    good = make_draft(tmp_path / "good", offsets=offsets, tensors={"t2d": mask})
    assert open_checkpoint(good).draft_map() is not None
    assert "t2d" not in open_checkpoint(good).tensor_names()
    bad = make_draft(tmp_path / "bad", offsets=offsets, tensors={"t2d": np.roll(mask, 1)})
    with pytest.raises(CheckpointError, match="t2d marks other target ids"):
        open_checkpoint(bad)
