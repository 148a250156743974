"""The tokenizer adds nothing, cuts nothing, and names what it cannot read."""

from __future__ import annotations

import json

import pytest

from engines.errors import BundleCorruptError, UsageError
from runtime.text import Tokenizer
from tests.runtime.text.tiny_tokenizers import SPECIAL, byte_fallback_bpe, byte_level_bpe


@pytest.mark.parametrize("text", ["", "the cat", " 😀 naïve\n", "<think>日本"])
def test_text_survives_the_round_trip(text: str) -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_special_token_in_the_text_is_one_id_and_no_text() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("<|im_start|>the<|im_end|>")
    assert ids[0] == tokenizer.id_of("<|im_start|>")
    assert ids[-1] == tokenizer.id_of("<|im_end|>")
    assert tokenizer.special_ids == {tokenizer.id_of(name) for name in SPECIAL}
    assert tokenizer.decode(ids) == "the"


def test_encode_adds_the_tokens_of_the_post_processor_only_when_asked() -> None:
    """Unasked, a chat prompt that spells its <s> would get a second one."""
    changed = json.loads(byte_level_bpe())
    changed["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {
            "<|im_start|>": {"id": "<|im_start|>", "ids": [0], "tokens": ["<|im_start|>"]}
        },
    }
    plain, processed = Tokenizer(byte_level_bpe()), Tokenizer(json.dumps(changed).encode())
    ids = plain.encode("the cat")
    assert processed.encode("the cat") == ids
    assert processed.encode("the cat", add_special_tokens=True) == [0, *ids]


def test_truncation_and_padding_of_the_file_are_switched_off() -> None:
    """Left on, they shorten a long prompt silently."""
    changed = json.loads(byte_level_bpe())
    changed["truncation"] = {
        "direction": "Right",
        "max_length": 4,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    changed["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    text = "the cat sat on the mat"
    ids = Tokenizer(json.dumps(changed).encode()).encode(text)
    assert ids == Tokenizer(byte_level_bpe()).encode(text)


def test_vocab_size_is_one_past_the_largest_id() -> None:
    """Added tokens count: a draft compared on the bare vocabulary would emit ids out of range."""
    tokenizer = Tokenizer(byte_level_bpe())
    assert tokenizer.token_of(tokenizer.vocab_size - 1) is not None
    assert tokenizer.token_of(tokenizer.vocab_size) is None
    assert tokenizer.id_of("no such token") is None


def test_the_kind_of_decoder_is_recognised() -> None:
    assert Tokenizer(byte_level_bpe()).is_byte_level
    assert not Tokenizer(byte_fallback_bpe()).is_byte_level
    changed = json.loads(byte_level_bpe())
    changed["decoder"] = {"type": "Sequence", "decoders": [changed["decoder"]]}
    assert Tokenizer(json.dumps(changed).encode()).is_byte_level
    changed["decoder"] = None
    assert not Tokenizer(json.dumps(changed).encode()).is_byte_level


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"[]", b"{}", b'{"model": {"type": "BPE"}}'])
def test_bytes_that_are_no_tokenizer_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(BundleCorruptError, match=r"tokenizer\.json") as caught:
        Tokenizer(data)
    assert "\n" not in str(caught.value)


def test_text_that_is_no_unicode_is_refused() -> None:
    """Command-line bytes that are not UTF-8 arrive as lone surrogates."""
    with pytest.raises(UsageError, match="UTF-8"):
        Tokenizer(byte_level_bpe()).encode("abc\udcff")


CONTRADICTIONS = {
    "a word that is not there": (
        "model",
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "?"},
    ),
    "a panic when it is read": (
        "normalizer",
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    ),
    "a panic when it is used": ("normalizer", {"type": "Prepend", "prepend": ""}),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_file_that_contradicts_itself_is_one_line(what: str) -> None:
    """The library's panics are no Exceptions and passed every handler as a traceback."""
    name, value = CONTRADICTIONS[what]
    changed = json.loads(byte_level_bpe()) | {name: value, "added_tokens": []}
    with pytest.raises(BundleCorruptError, match=r"tokenizer\.json cannot be used") as caught:
        Tokenizer(json.dumps(changed).encode()).encode("hello")
    assert "\n" not in str(caught.value)


def test_only_a_surely_too_long_text_is_told_without_encoding_it() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    for text in ("", "x" * 50, "😀" * 10, "the cat " * 6):
        assert tokenizer.may_fit(text, len(tokenizer.encode(text)))
    assert not tokenizer.may_fit("x" * 10_000, 10)
    assert Tokenizer(byte_fallback_bpe()).may_fit("x" * 10_000, 10)


def test_a_tokens_bytes_joined_are_the_text():
    """A character's bytes are spread over tokens, which decoded alone are U+FFFD each."""
    for data in (byte_level_bpe(), byte_fallback_bpe()):
        tokenizer = Tokenizer(data)
        text = "cat🦜 é" if tokenizer.is_byte_level else "cat"
        ids = tokenizer.encode(text)
        assert b"".join(map(tokenizer.bytes_of, ids)).decode().strip() == tokenizer.decode(ids)
        assert all(tokenizer.bytes_of(special) == b"" for special in tokenizer.special_ids)
        assert tokenizer.bytes_of(tokenizer.vocab_size + 5) == b""
