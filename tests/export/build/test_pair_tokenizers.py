"""Tokenizers and chat templates of a pair: what is refused, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.errors import CheckpointError
from export.build.pair import (
    check_pair,
    check_target,
    target_notes,
    view_target,
)
from export.checkpoint.api import open_checkpoint
from tests.export.build.pair_folders import edit_tokenizer, target_in
from tests.helpers.checkpoints import (
    byte_level_tokenizer,
    make_llama,
)


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
