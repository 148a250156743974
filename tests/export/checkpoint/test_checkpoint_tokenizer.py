from __future__ import annotations

import unicodedata
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CheckpointError, UnsupportedModelError
from export import fetch
from export.checkpoint.api import open_checkpoint
from export.checkpoint.gguf_tokenizer import tokenizer_json
from tests.helpers.checkpoints import BOS_ID, SPECIAL_TOKENS, bpe_pieces, byte_level_tokenizer

TOKENS, MERGES = bpe_pieces(500)
TEXTS = [
    "",
    " ",
    "Hello, world!",
    "two  spaces,   three, and a trailing one ",
    "In 2024 it was 3.14159, or 1,000,000.",
    "déjà vu, naïve, Ünïcödé, e\u0301",
    "日本語のテキスト and 한국어 и русский",
    "😀👩\u200d👩\u200d👧 🏳\ufe0f\u200d🌈",
    "def f(x):\n\treturn {'a': x**2}\n\n\n# done\r\n",
    "it's I'll WE'VE don't",
    "\x00\x7f\u2028\ufffd",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start <|im_end| <|endoftext|><|endoftext|>",
]


def build(pre: str = "gpt-2", **changes: Any) -> Any:
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL_TOKENS) + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in MERGES],
        "tokenizer.ggml.bos_token_id": BOS_ID,
    }
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    return tokenizers.Tokenizer.from_str(tokenizer_json(metadata, "x.gguf").decode())


RULES = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2"]
BUILT = {pre: build(pre) for pre in RULES}
REFERENCE = tokenizers.Tokenizer.from_str(byte_level_tokenizer(500).decode())


@pytest.mark.parametrize("pre", RULES)
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_encoding_and_decoding(pre: str, text: str) -> None:
    ids = BUILT[pre].encode(text, add_special_tokens=False).ids
    expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    assert BUILT[pre].decode(ids, skip_special_tokens=False) == expected


@given(text=st.text(max_size=40), pre=st.sampled_from(RULES))
def test_any_text_survives_encoding_and_decoding(text: str, pre: str) -> None:
    ids = BUILT[pre].encode(text, add_special_tokens=False).ids
    # NFC is a fact of a tokenizer; characters newer than one of the two Unicode tables may differ.
    expected = [text, unicodedata.normalize("NFC", text)] if pre == "qwen2" else [text]
    assert BUILT[pre].decode(ids, skip_special_tokens=False) in expected


@given(text=st.text(max_size=40))
def test_the_plain_rule_equals_the_library_s_own_byte_level_tokenizer(text: str) -> None:
    assert BUILT["gpt-2"].encode(text).ids == REFERENCE.encode(text).ids


def pieces(pre: str, text: str) -> list[str]:
    split = BUILT[pre].pre_tokenizer.pre_tokenize_str(text)
    return [piece.replace("Ġ", " ").replace("Ċ", "\n").replace("č", "\r") for piece, _ in split]


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("gpt-2", ["In", " 12345", ",", " it", "'s", "\n", "\n", "x"]),
        ("smollm", ["In", " ", "1", "2", "3", "4", "5", ",", " it", "'s", "\n", "\n", "x"]),
        ("llama-bpe", ["In", " ", "123", "45", ",", " it", "'s", "\n\n", "x"]),
        ("qwen2", ["In", " ", "1", "2", "3", "4", "5", ",", " it", "'s", "\n\n", "x"]),
    ],
)
def test_numbers_and_line_ends_are_split_as_the_model_was_trained(
    pre: str, expected: list[str]
) -> None:
    """A wrong rule still round-trips: the text is right and the model's input is not."""
    assert pieces(pre, "In 12345, it's\n\nx") == expected


def test_smollm_splits_digits_before_anything_else() -> None:
    """So that line ends in front of a digit stay together (seen in the model's own outputs)."""
    assert pieces("smollm", "a\n\n1") == ["a", "\n\n", "1"]
    assert pieces("smollm", "a\n\nb") == ["a", "\n", "\n", "b"]


def test_control_tokens_are_special_and_whole() -> None:
    tokenizer = BUILT["smollm"]
    ids = tokenizer.encode("a<|im_end|>b").ids
    assert SPECIAL_TOKENS.index("<|im_end|>") in ids
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|im_end|>b"


def test_user_defined_tokens_are_whole_but_not_special() -> None:
    """Qwen3's <think>: one token, and part of the visible text."""
    types = [3, 3, 4] + [1] * (len(TOKENS) - 3)
    tokenizer = build(token_type=types)
    ids = tokenizer.encode("a<|im_end|>b").ids
    assert 2 in ids
    assert tokenizer.decode(ids) == "a<|im_end|>b"


def test_ids_are_those_of_the_file() -> None:
    tokenizer = BUILT["llama-bpe"]
    assert tokenizer.get_vocab_size() == len(TOKENS)
    assert [tokenizer.token_to_id(token) for token in TOKENS] == list(range(len(TOKENS)))


@pytest.mark.parametrize(
    ("pre", "says", "expected"),
    [
        ("smollm", None, False),
        ("smollm", False, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),  # Llama 3's own tokenizer does, and its GGUF files do not say
        ("llama-bpe", False, False),
        ("qwen2", None, False),
    ],
)
def test_a_beginning_token_is_added_only_where_it_belongs(
    pre: str, says: bool | None, expected: bool
) -> None:
    tokenizer = build(pre, add_bos_token=says)
    plain = tokenizer.encode("hi", add_special_tokens=False).ids
    assert BOS_ID not in plain
    assert tokenizer.encode("hi").ids == ([BOS_ID, *plain] if expected else plain)


def test_tokens_that_need_no_merges_for_llama3() -> None:
    """Llama 3 takes a whole piece that is a token, even if no merges lead to it."""
    tokens = [*TOKENS, "zebra"]
    types = [3, 3, 3] + [1] * (len(tokens) - 3)
    changes: dict[str, Any] = {"tokens": tokens, "token_type": types, "add_bos_token": False}
    assert build("llama-bpe", **changes).encode("zebra").ids == [len(tokens) - 1]
    assert len(build("qwen2", **changes).encode("zebra").ids) > 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "tokenizer model 't5' is not supported"),
        ({"pre": "tekken"}, "text splitting rule 'tekken' is not supported"),
    ],
)
def test_other_tokenizers_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        build(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens must be a list of strings"),
        ({"tokens": [*TOKENS[:-1], TOKENS[5]]}, "holds a token twice"),
        ({"token_type": [1] * 501}, "token_type must list 500 token types"),
        ({"merges": [1, 2]}, "tokenizer.ggml.merges must be a list of strings"),
        ({"merges": ["abc"]}, "merge 'abc' is not two tokens"),
        ({"merges": ["no such"]}, "merges do not fit the tokens"),
        ({"bos_token_id": 500, "add_bos_token": True}, "bos_token_id must be a token id"),
    ],
)
def test_damaged_vocabularies_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        build(**changes)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def smollm2() -> Any:
    path = fetch.location("smollm2-135m")
    if not path.is_file():
        pytest.skip(f"not fetched; run: {fetch.fetch_command('smollm2-135m')}")
    text = open_checkpoint(path).tokenizer_json()
    assert text is not None
    return tokenizers.Tokenizer.from_str(text.decode())


@pytest.mark.real
@pytest.mark.parametrize("text", TEXTS)
def test_the_default_target_s_tokenizer_round_trips(smollm2: Any, text: str) -> None:
    assert smollm2.decode(smollm2.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.real
def test_the_default_target_s_tokenizer_gives_the_ids_it_was_trained_on(smollm2: Any) -> None:
    """Ids of a conversation as transformers' own tokenizer of this model makes them."""
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
        "trained by Hugging Face<|im_end|>\n<|im_start|>user\n"
    )
    ids = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018]
    ids += [411, 407, 19712, 8182, 2, 198, 1, 4093, 198]
    assert smollm2.encode(text).ids == ids
