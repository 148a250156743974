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
    target_notes,
    view_target,
)
from export.checkpoint.api import Checkpoint, open_checkpoint
from tests.helpers.checkpoints import (
    LLAMA3_ROPE,
    byte_level_tokenizer,
    make_draft,
    make_gguf,
    make_llama,
    make_qwen3,
)


def target_in(folder: Path, **options: Any) -> Checkpoint:
    return open_checkpoint(make_llama(folder / "target", **options))


def edit_tokenizer(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    path = folder / "tokenizer.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    return folder


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


def test_an_added_token_without_an_embedding_is_said_and_not_refused(tmp_path: Path) -> None:
    """Gemma 3's text models have 262144 embeddings and a token for images, id 262144."""

    def add(document: dict[str, Any]) -> None:
        last = document["added_tokens"][-1]
        document["added_tokens"].append({**last, "id": 320, "content": "<image>"})

    target = open_checkpoint(edit_tokenizer(make_llama(tmp_path / "t"), add))
    check_target(target, 64)
    (note,) = target_notes(view_target(target))
    assert "'<image>' (id 320) has no embedding in t; a prompt that holds it is refused" in note


def test_padding_and_ids_without_a_text_are_said(tmp_path: Path) -> None:
    def add(document: dict[str, Any]) -> None:
        last = document["added_tokens"][-1]
        document["added_tokens"].append({**last, "id": 323, "content": "<late>"})

    folder = make_llama(tmp_path / "t", vocab=352, tokenizer=False)
    (folder / "tokenizer.json").write_bytes(byte_level_tokenizer(320))
    found = target_notes(view_target(open_checkpoint(edit_tokenizer(folder, add))))
    assert found == [
        "t has 352 embeddings for 324 tokens; the padding is left out",
        "note: 3 ids between tokens of t spell nothing (320 is the first)",
    ]


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


def test_a_target_needs_a_sound_tokenizer_that_fits_its_embeddings(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        check_target(target_in(tmp_path / "1", tokenizer=False), 64)
    folder = make_llama(tmp_path / "2" / "target")
    for damaged in (b"{", b"[]", b'{"model": 3}', b"{}"):
        (folder / "tokenizer.json").write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged or not a tokenizer"):
            check_target(open_checkpoint(folder), 64)
    larger = make_llama(tmp_path / "3" / "other", vocab=400)
    (folder / "tokenizer.json").write_bytes((larger / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match=r"gives ids up to 399, .* only 320 embeddings"):
        check_target(open_checkpoint(folder), 64)


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


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document["model"].update(merges=[5, None]),
        lambda document: document["model"].update(vocab={"a": "b"}, merges=[]),
        lambda document: document.update(
            normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
        ),
    ],
    ids=["merges", "vocabulary", "panic"],
)
def test_a_tokenizer_that_cannot_be_loaded_is_refused_on_either_side(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """Built, the bundle could not be opened; a draft's empty vocabulary equalled every other."""
    damaged = open_checkpoint(edit_tokenizer(make_llama(tmp_path / "damaged"), change))
    with pytest.raises(CheckpointError, match="damaged: tokenizer"):
        check_target(damaged, 64)
    with pytest.raises(CheckpointError, match="damaged: tokenizer"):
        check_pair(target_in(tmp_path), damaged, 64)


@pytest.mark.parametrize("shares", [[10**400], [5], "x", [None], {}, 5])
def test_figures_that_are_no_shares_are_left_out(tmp_path: Path, shares: object) -> None:
    folder = make_draft(tmp_path / "d", config={"measured": {"rank_shares": shares}})
    assert draft_figures(open_checkpoint(folder)) is None


def test_a_token_of_an_absurd_id_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    """Ids up to the last one were listed: four billion of them, for five minutes."""

    def add(document: dict[str, Any]) -> None:
        last = document["added_tokens"][-1]
        document["added_tokens"].append({**last, "id": 4_000_000_000, "content": "<far>"})

    target, draft = (
        open_checkpoint(edit_tokenizer(make_llama(tmp_path / name), add)) for name in "td"
    )
    (note,) = target_notes(view_target(target))
    assert "'<far>' (id 4000000000) has no embedding" in note
    assert check_pair(target, draft, 64).spec.vocab_size == 320


def test_a_tokenizer_without_a_token_is_refused_on_either_side(tmp_path: Path) -> None:
    """It loads, every text becomes nothing, and it differs from no other."""

    def empty(document: dict[str, Any]) -> None:
        document["added_tokens"] = []
        document["model"] = {"type": "WordLevel", "vocab": {}, "unk_token": "?"}

    bare = open_checkpoint(edit_tokenizer(make_llama(tmp_path / "bare"), empty))
    for refused in (
        lambda: check_target(bare, 64),
        lambda: check_pair(target_in(tmp_path), bare, 64),
    ):
        with pytest.raises(CheckpointError, match=r"bare: the vocabulary .* is empty"):
            refused()


def test_a_chat_template_that_does_not_compile_is_said_when_the_bundle_is_built(
    tmp_path: Path,
) -> None:
    """The first user who chatted was told, long after. One that takes for ever is not run."""
    folder = make_llama(tmp_path / "t")
    template = folder / "chat_template.jinja"
    template.write_text("{% for %}")
    (note,) = target_notes(view_target(open_checkpoint(folder)))
    assert "chat template does not compile" in note
    assert note.endswith("generate --chat will be refused")
    forever = "{% for a in range(99999) %}" * 5 + "{% endfor %}" * 5
    for harmless in ("", forever, "{{ raise_exception('only with tools') }}"):
        template.write_text(harmless)
        assert target_notes(view_target(open_checkpoint(folder))) == []
