"""The tokenizer of a GGUF file with SentencePiece's scores against llama.cpp's way to use them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CheckpointError
from export.checkpoint.gguf_spm import SPACE
from export.checkpoint.gguf_tokenizer import tokenizer_json

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["ab", "bc", "abc", "ca", "aa", "aab", "b" + SPACE, SPACE + "a", SPACE + "ab", SPACE * 2]
LETTERS = [*"abc", SPACE, "é"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *PIECES, *LETTERS, "\n\n", "<turn>"]
KINDS = [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) + len(LETTERS)), 4, 3]
SCORES = [0.0] * 259 + [-float(rank) for rank in range(len(PIECES) + len(LETTERS))] + [-1e3] * 2


def build(**changes: Any) -> Any:
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": KINDS,
        "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }
    for name, value in changes.items():
        metadata[f"tokenizer.ggml.{name}"] = value
    return tokenizers.Tokenizer.from_str(tokenizer_json(metadata, "x.gguf").decode())


PLAIN, PREFIXED = build(), build(add_space_prefix=True)


def by_score(text: str) -> list[int]:
    """llama.cpp's rule: join the neighbours that score highest, the leftmost of equals."""
    parts = list(text.replace(" ", SPACE))
    ids = {token: index for index, token in enumerate(TOKENS) if KINDS[index] == 1}
    while True:
        joins = [
            (SCORES[ids[left + right]], -at)
            for at, (left, right) in enumerate(pairwise(parts))
            if left + right in ids
        ]
        if not joins:
            break
        at = -max(joins)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    found = []
    for part in parts:
        known = part in ids
        found += [ids[part]] if known else [TOKENS.index(f"<0x{b:02X}>") for b in part.encode()]
    return found


@given(st.text(alphabet="abcé xß日", max_size=20))
def test_pieces_are_joined_in_the_order_of_their_scores(text: str) -> None:
    assert PLAIN.encode(text, add_special_tokens=False).ids == by_score(text)


def test_rules_stand_in_the_order_that_transformers_gives_them() -> None:
    """A GGUF file and a folder of one model were refused as a pair: one rule came before another.

    Expected is what transformers 5.24 makes of these pieces and scores (``generate_merges``).
    """
    rules = json.loads(PLAIN.to_str())["model"]["merges"]
    shown = ["+".join(rule).replace(SPACE, "_") for rule in rules]
    of_letters, of_spaces = "a+b b+c ab+c a+bc c+a a+a aa+b a+ab", "b+_ _+a _a+b _+ab _+_"
    assert shown == [*of_letters.split(), *of_spaces.split()]


@given(st.text(alphabet="abcé xß日\t", max_size=20))
def test_text_survives(text: str) -> None:
    for tokenizer in (PLAIN, PREFIXED):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_a_space_before_the_text_is_added_where_the_file_does_not_say_otherwise() -> None:
    """Llama 2's way; a Gemma file turns it off. The first word is another token otherwise."""
    ab, with_space = TOKENS.index("ab"), TOKENS.index(SPACE + "ab")
    assert build(add_space_prefix=None).encode("ab").ids == [1, with_space]
    assert PLAIN.encode("ab").ids == [1, ab]
    assert build(add_bos_token=False).encode("ab").ids == [ab]


def test_control_and_user_defined_tokens_are_found_in_the_text() -> None:
    newlines, turn = TOKENS.index("\n\n"), TOKENS.index("<turn>")
    assert PLAIN.encode("<turn>ab\n\nab").ids[1:] == [
        turn,
        *by_score("ab"),
        newlines,
        *by_score("ab"),
    ]
    assert PLAIN.decode([turn, newlines]) == "\n\n"


def test_a_byte_s_name_in_the_text_is_not_the_byte() -> None:
    assert TOKENS.index("<0x61>") not in PLAIN.encode("<0x61>", add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores must list the scores of"),
        ({"scores": SCORES[:-1]}, "scores must list the scores of"),
        ({"scores": ["0"] * len(TOKENS)}, "scores must list the scores of"),
        ({"tokens": [*TOKENS[:-1], "ab"]}, "holds a token twice"),
        ({"unknown_token_id": 10**6}, "unknown_token_id must be a token id"),
    ],
)
def test_damaged_files_are_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as error:
        build(**changes)
    assert "\n" not in str(error.value)
