from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.errors import CheckpointError, PairError, UsageError
from export.build.pair import (
    check_pair,
    check_target,
    draft_figures,
    pair_notes,
)
from export.checkpoint.api import open_checkpoint
from tests.export.build.pair_folders import edit_tokenizer, target_in
from tests.helpers.checkpoints import (
    LLAMA3_ROPE,
    byte_level_tokenizer,
    make_draft,
    make_gguf,
    make_llama,
    make_qwen3,
)


def test_a_draft_with_the_same_tokenizer_fits_whatever_its_insides(tmp_path: Path) -> None:
    """Other family, width, depth, rope base, and no map: all of that may differ."""
    draft = make_qwen3(tmp_path / "d", hidden=48, layers=1, rope_theta=1e6)
    view = check_pair(target_in(tmp_path), open_checkpoint(draft), 64)
    assert view.spec.hidden_size == 48
    assert view.vocab_map is None


def test_a_draft_without_a_tokenizer_takes_the_targets(tmp_path: Path) -> None:
    view = check_pair(target_in(tmp_path), open_checkpoint(make_draft(tmp_path / "d")), 64)
    assert view.vocab_map is not None
    assert view.vocab_map.dtype == np.int32
    assert view.spec.draft_vocab_size == len(view.vocab_map) == 300


def test_the_same_tokenizer_in_a_gguf_and_in_a_folder_fits(tmp_path: Path) -> None:
    draft = open_checkpoint(make_gguf(tmp_path / "g"))
    assert check_pair(target_in(tmp_path), draft, 64).spec.vocab_size == 320


def test_a_draft_without_a_tokenizer_and_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", vocab=330, embeddings_from_target=False)
    with pytest.raises(PairError, match=r"no tokenizer of its own and 330 .* 320"):
        check_pair(target_in(tmp_path), open_checkpoint(draft), 64)


def swap(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    first, second = list(vocabulary)[10:12]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def shift(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    learned = list(vocabulary)[3:]
    for index, piece in enumerate(learned):
        vocabulary[piece] = 3 + (index + 1) % len(learned)


def rename_special(document: dict[str, Any]) -> None:
    document["added_tokens"][2]["content"] = "<|end|>"


def reorder_merges(document: dict[str, Any]) -> None:
    document["model"]["merges"].reverse()


def drop_merge(document: dict[str, Any]) -> None:
    document["model"]["merges"].pop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            swap,
            r"id 10 is '(.)' in .* and '(.)' in .*, id 11 is '\2' in .* and '\1' in .* \(2 of 320",
        ),
        (rename_special, r"id 2 is '<\|end\|>' in the draft and '<\|im_end\|>' in the target"),
        (shift, r"id 3 is .*, id 4 is .*, id 5 is .*[^,] \(317 of 320 ids differ\)"),
        (reorder_merges, r"merge rule 0 is"),
        (drop_merge, r"60 merge rules in the draft, 61 in the target"),
    ],
)
def test_another_tokenizer_is_refused_naming_the_first_difference(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    draft = edit_tokenizer(make_llama(tmp_path / "d"), change)
    with pytest.raises(PairError, match=words) as caught:
        check_pair(target_in(tmp_path), open_checkpoint(draft), 64)
    assert "draft d and target target" in str(caught.value)
    assert str(caught.value).endswith("train one: python -m export distill --target target")
    assert "\n" not in str(caught.value)


def test_merges_written_the_old_way_are_the_same_merges(tmp_path: Path) -> None:
    def as_strings(document: dict[str, Any]) -> None:
        model = document["model"]
        assert isinstance(model["merges"][0], list)
        model["merges"] = [" ".join(pair) for pair in model["merges"]]

    draft = edit_tokenizer(make_llama(tmp_path / "d"), as_strings)
    check_pair(target_in(tmp_path), open_checkpoint(draft), 64)


def test_an_added_token_at_the_end_of_one_tokenizer_is_no_difference(tmp_path: Path) -> None:
    def add(document: dict[str, Any]) -> None:
        last = document["added_tokens"][-1]
        document["added_tokens"].append({**last, "id": 320, "content": "<extra>"})

    draft = edit_tokenizer(make_llama(tmp_path / "d", vocab=320), add)
    check_pair(target_in(tmp_path, vocab=320), open_checkpoint(draft), 64)


@pytest.mark.parametrize(("draft_vocab", "target_vocab"), [(1000, 980), (980, 1000)])
def test_padding_at_the_end_of_a_vocabulary_is_no_difference(
    tmp_path: Path, draft_vocab: int, target_vocab: int
) -> None:
    """V1. Rows that stand for no token are cut, so that a draft cannot propose them (V4)."""
    draft = open_checkpoint(make_llama(tmp_path / "d", vocab=draft_vocab))
    view = check_pair(target_in(tmp_path, vocab=target_vocab), draft, 64)
    assert view.spec.vocab_size == 961
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        np.testing.assert_array_equal(view.tensor(name), draft.tensor(name)[:961])
    name = "model.norm.weight"
    np.testing.assert_array_equal(view.tensor(name), draft.tensor(name))


def test_a_map_beyond_the_targets_ids_is_refused(tmp_path: Path) -> None:
    draft = make_draft(tmp_path / "d", vocab=980, embeddings_from_target=False)
    source = make_llama(tmp_path / "with-tokenizer", vocab=980)
    (draft / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    with pytest.raises(PairError, match=r"leads to id 9\d\d, the target has ids 0 to 961"):
        check_pair(target_in(tmp_path, vocab=962), open_checkpoint(draft), 64)


def test_v4_a_map_keeps_only_ids_that_the_draft_has_embeddings_for(tmp_path: Path) -> None:
    """A proposed id is fed back to the draft: beyond its table, the lookup fails or lies."""

    def add(document: dict[str, Any]) -> None:
        last = document["added_tokens"][-1]
        document["added_tokens"].append({**last, "id": 320, "content": "<extra>"})

    target, offsets = make_llama(tmp_path / "t", vocab=330, tokenizer=False), np.full(300, 21)
    draft = make_draft(tmp_path / "d", vocab=330, offsets=offsets, embeddings_from_target=False)
    for folder in (target, draft):
        (folder / "tokenizer.json").write_bytes(byte_level_tokenizer(320))
    stored = open_checkpoint(draft)
    view = check_pair(open_checkpoint(edit_tokenizer(target, add)), stored, 64)
    assert view.spec.vocab_size == 320
    assert view.vocab_map is not None
    assert view.vocab_map.tolist() == list(range(21, 320))  # not 320, which only the target has
    head = stored.tensor("lm_head.weight")[:-1]
    np.testing.assert_array_equal(view.tensor("lm_head.weight"), head)


def test_a_map_to_padding_alone_is_refused(tmp_path: Path) -> None:
    target = make_llama(tmp_path / "t", vocab=700, tokenizer=False)
    (target / "tokenizer.json").write_bytes(byte_level_tokenizer(320))
    offsets = np.full(300, 330)
    draft = make_draft(tmp_path / "d", vocab=700, offsets=offsets)
    with pytest.raises(
        PairError, match="padding alone, the tokens of both models are ids 0 to 319"
    ):
        check_pair(open_checkpoint(target), open_checkpoint(draft), 64)


def test_v10_a_derived_draft_with_other_constants_is_warned_about(tmp_path: Path) -> None:
    """V10. Wrong positions cost acceptance, and nothing else tells of them."""
    scaling = {**LLAMA3_ROPE}
    target = target_in(tmp_path, rope_theta=5e5, rope_scaling=scaling)
    wrong = open_checkpoint(make_draft(tmp_path / "w", config={"rms_norm_eps": 1e-6}))
    found = pair_notes(target, wrong)
    assert [line.split(" is ")[0] for line in found] == [
        "warning: rope_theta",
        "warning: rope_scaling",
        "warning: rms_norm_eps",
    ]
    assert "rope_theta is 10000 in the draft and 500000 in the target" in found[0]
    assert "not set in the draft" in found[1]
    right = make_draft(tmp_path / "r", rope_theta=5e5, rope_scaling=scaling)
    assert pair_notes(target, open_checkpoint(right)) == []


def test_special_tokens_with_another_role_are_said(tmp_path: Path) -> None:
    """The ids agree, but one model ends its texts with another token than the other."""
    draft = make_llama(tmp_path / "d", layers=1)
    path = draft / "tokenizer_config.json"
    document = {**json.loads(path.read_text(encoding="utf-8")), "eos_token": "<|endoftext|>"}
    path.write_text(json.dumps(document), encoding="utf-8")
    (note,) = pair_notes(target_in(tmp_path), open_checkpoint(draft))
    assert "eos_token is '<|endoftext|>' in the draft and '<|im_end|>' in the target" in note


def test_v10_a_tensor_that_the_draft_lacks_is_named(tmp_path: Path) -> None:
    """V10: another system read a missing bias as zeros."""
    folder = make_draft(tmp_path, tensors={"model.norm.weight": None})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight"):
        open_checkpoint(folder)


def test_borrowed_embeddings_must_have_the_drafts_width(tmp_path: Path) -> None:
    draft = open_checkpoint(make_draft(tmp_path / "d", hidden=48))
    with pytest.raises(PairError, match=r"expects \[320, 48\], the target has \[320, 32\]"):
        check_pair(target_in(tmp_path), draft, 64)


def test_a_text_longer_than_a_model_was_made_for_is_refused(tmp_path: Path) -> None:
    target = target_in(tmp_path, max_position=128)
    draft = open_checkpoint(make_draft(tmp_path / "d", max_position=64))
    check_target(target, 128)
    with pytest.raises(UsageError, match="--max-len 129 is beyond the 128 positions"):
        check_target(target, 129)
    check_pair(target, draft, 64)
    with pytest.raises(PairError, match="--max-len 65 is beyond the 64 positions of the draft d"):
        check_pair(target, draft, 65)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ({"rank_shares": [0.5, 0.25]}, (0.5, 0.25)),
        ({"rank_shares": [1]}, (1.0,)),
        ({"rank_shares": []}, None),
        ({"rank_shares": [1.5]}, None),
        ({"rank_shares": ["a"]}, None),
        ({"rank_shares": 3}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_what_a_drafts_maker_measured_is_taken_if_it_makes_sense(
    tmp_path: Path, measured: object, expected: tuple[float, ...] | None
) -> None:
    draft = open_checkpoint(make_draft(tmp_path / "d", config={"measured": measured}))
    figures = draft_figures(draft)
    assert (figures.ranks if figures else None) == expected


@pytest.mark.parametrize("shares", [[10**400], [5], "x", [None], {}, 5])
def test_figures_that_are_no_shares_are_left_out(tmp_path: Path, shares: object) -> None:
    folder = make_draft(tmp_path / "d", config={"measured": {"rank_shares": shares}})
    assert draft_figures(open_checkpoint(folder)) is None
