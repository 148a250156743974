"""Streaming text: the pieces are final, and joined they are the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text import Detokenizer, Tokenizer
from tests.runtime.text.tiny_tokenizers import TEXT, byte_fallback_bpe, byte_level_bpe

TOKENIZERS = {"byte-level": byte_level_bpe, "byte-fallback": byte_fallback_bpe}


@pytest.fixture(params=sorted(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(TOKENIZERS[request.param]())


def pieces(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.feed([i]) for i in ids), detokenizer.flush()]


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
@given(data=st.data())
def test_pieces_join_to_the_text_of_all_ids(kind: str, data: st.DataObject) -> None:
    """Any ids at all: split emoji, invalid bytes, special, added and unknown tokens."""
    tokenizer = Tokenizer(TOKENIZERS[kind]())
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=60))
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@given(data=st.data(), text=st.text(max_size=30))
def test_no_piece_holds_a_replacement_that_the_text_does_not_have(
    data: st.DataObject, text: str
) -> None:
    """Half an emoji shown as U+FFFD and corrected later would reach a terminal as garbage."""
    tokenizer = Tokenizer(byte_level_bpe())
    text = data.draw(st.sampled_from(TEXT)) + text
    parts = pieces(tokenizer, tokenizer.encode(text))
    assert "".join(parts) == text
    assert sum(part.count("\ufffd") for part in parts) == text.count("\ufffd")


def test_an_emoji_comes_whole_with_its_last_token() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("🦜")
    assert len(ids) == 3, "the fixture must split it"
    assert pieces(tokenizer, ids) == ["", "", "🦜", ""]


def test_a_cut_emoji_is_flushed_as_one_replacement() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    assert pieces(tokenizer, tokenizer.encode("🦜")[:2]) == ["", "", "\ufffd"]


def test_invalid_bytes_do_not_hold_the_stream_back() -> None:
    """A model stuck on one invalid byte: text must keep coming, with constant work a token."""
    tokenizer = Tokenizer(byte_level_bpe())
    stray = tokenizer.id_of("Ģ")  # 0x80: a continuation byte that continues nothing
    assert stray is not None
    assert pieces(tokenizer, [stray] * 5) == ["\ufffd"] * 5 + [""]


def test_a_repeated_replacement_token_is_not_held_for_ever() -> None:
    tokenizer = Tokenizer(byte_fallback_bpe())
    token = tokenizer.id_of("\ufffd")
    assert token is not None
    parts = pieces(tokenizer, [token] * 100)
    assert parts[:-1].count("") < 100
    assert "".join(parts) == "\ufffd" * 100


def test_plain_text_is_not_delayed(tokenizer: Tokenizer) -> None:
    """Every token of plain text shows at once: a stream one token late looks stuck."""
    ids = [i for i in map(tokenizer.id_of, "abch") if i is not None]
    assert pieces(tokenizer, ids) == ["a", "b", "c", "h", ""]


def test_special_tokens_are_silent_and_do_not_eat_the_next_space() -> None:
    tokenizer = Tokenizer(byte_fallback_bpe())
    ids = [tokenizer.id_of(name) for name in ("▁h", "</s>", "▁h")]
    assert pieces(tokenizer, [i for i in ids if i is not None]) == ["h", "", " h", ""]
