"""Grammars over a tokenizer: which tokens may come next, until the text is what was asked for."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import MissingDependencyError, UsageError
from runtime.grammar import Grammar, GrammarCompiler, check
from runtime.text.tokenizer import Tokenizer
from tests.helpers.checkpoints import byte_level_tokenizer

VOCAB, PADDED, EOS = 320, 352, 2
TOKENIZER = byte_level_tokenizer(VOCAB)
READER = Tokenizer(TOKENIZER)
COMPILER = GrammarCompiler(TOKENIZER, PADDED, (EOS,))


def follow(grammar: Grammar, text: str) -> bool | None:
    """Whether the text may end where it does; None where it may not begin like this at all."""
    state = COMPILER.start(grammar)
    for token in READER.encode(text):
        allowed = state.allowed(PADDED)
        assert allowed is not None
        if not allowed[token]:
            return None
        state.take(token)
    allowed = state.allowed(PADDED)
    assert allowed is not None
    assert not allowed[VOCAB:].any(), "ids that no text has"
    return bool(allowed[EOS])


def random_text(grammar: Grammar, seed: int, most: int = 400) -> tuple[str, bool]:
    """A text of tokens drawn from those allowed, and whether it came to its end."""
    state, random, ids = COMPILER.start(grammar), np.random.default_rng(seed), []
    while len(ids) < most:
        allowed = state.allowed(PADDED)
        assert allowed is not None
        choices = np.flatnonzero(allowed)
        # Ends early, and seldom opens another level: a random text need not end at all.
        weights = np.where(choices == EOS, 5.0, 1.0)
        token = int(random.choice(choices, p=weights / weights.sum()))
        state.take(token)
        if token == EOS:
            assert state.allowed(PADDED) is None
            return READER.decode(ids), True
        ids.append(token)
    return READER.decode(ids), False


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


@given(st.integers(0, 2**32))
def test_what_ends_is_what_the_schema_says(seed) -> None:
    text, has_ended = random_text(Grammar.json_schema(SCHEMA), seed)
    assert has_ended
    value = json.loads(text)
    assert list(value) == ["name", "age", "kind"]
    assert len(value["name"]) <= 8
    assert type(value["age"]) is int
    assert 0 <= value["age"] <= 150
    assert value["kind"] in ("cat", "dog")


@pytest.mark.parametrize(
    ("grammar", "whole", "begun", "wrong"),
    [
        (Grammar.regex(r"[a-c]+@(com|org)"), "abc@com", "abc@c", "abd"),
        (Grammar.json_object(), '{"a": [1, 2]}', '{"a": [1', "[1]"),
        (Grammar.json_object(), '{\n    "a": 1\n}', '{\n    "a', "{\n\n"),
        (Grammar.lark('start: "x" start "y" | "z"'), "xxzyy", "xxzy", "zz"),
        (Grammar.choice(["yes", "no"]), "no", "y", "maybe"),
    ],
)
def test_end_of_sequence_comes_where_the_text_is_complete(grammar, whole, begun, wrong) -> None:
    check(grammar)
    assert follow(grammar, whole) is True
    assert follow(grammar, begun) is False
    assert follow(grammar, wrong) is None


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), min_size=1))
def test_a_choice_is_word_for_word(answers) -> None:
    """Whatever characters: they became syntax of the grammar that they were written into."""
    grammar = Grammar.choice(answers)
    assert all(follow(grammar, answer) for answer in answers)
    assert random_text(grammar, 0)[0] in answers


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar.regex("(a"), "regular expression cannot be used: .*unclosed group"),
        (Grammar.regex("(?=a)b"), "look-around"),
        (Grammar.lark("start: other"), 'grammar cannot be used: .*unknown name: "other"'),
        (Grammar.json_schema({"type": "objct"}), "JSON schema cannot be used: .*objct"),
        (Grammar.json_schema({"not": {}}), 'Unimplemented keys: \\["not"\\]'),
        (Grammar.json_schema({"$ref": "http://localhost/x"}), "http://localhost/x"),
        (Grammar.choice(["\ud800"]), "choice cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_be_enforced_is_refused_in_one_line(grammar, reason) -> None:
    """A schema's keyword that is passed by gives answers that the schema forbids. Without a
    tokenizer, too: a command said so only when the model was loaded."""
    for refuse in (COMPILER.start, check):
        with pytest.raises(UsageError, match=reason) as caught:
            refuse(grammar)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "make",
    [
        lambda: Grammar.json_schema("{"),
        lambda: Grammar.json_schema("[]"),
        lambda: Grammar.json_schema({"a": {1, 2}}),
        lambda: Grammar.json_schema("[" * 100_000),
        lambda: Grammar.json_schema(3),  # type: ignore[arg-type]
        lambda: Grammar.regex(""),
        lambda: Grammar.lark(None),  # type: ignore[arg-type]
        lambda: Grammar.choice([]),
        lambda: Grammar.choice("yes"),
        lambda: Grammar.choice(["yes", ""]),
        lambda: COMPILER.start({"type": "object"}),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_grammar_is_refused(make) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_grammar_that_no_token_continues_ends_the_text_and_says_why() -> None:
    """Every token masked is no law: it stopped the engines for all who used them."""
    tokenizer = json.loads(TOKENIZER)
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["<gone>"] = vocabulary.pop("\u00c3")  # the byte that an e-acute begins with
    state = GrammarCompiler(json.dumps(tokenizer).encode(), VOCAB, (EOS,)).start(
        Grammar.regex("z\u00e9")
    )
    taken: list[int] = []
    while (allowed := state.allowed(VOCAB)) is not None and len(taken) < 5:
        [token] = np.flatnonzero(allowed).tolist()
        state.take(token)
        taken.append(token)
    assert (taken[0], taken[-1]) == (READER.encode("z")[0], EOS)
    assert state.failure is not None
    assert "\n" not in state.failure


def test_states_of_one_grammar_do_not_share_a_place() -> None:
    one, other = (COMPILER.start(Grammar.choice(["ab", "cd"])) for _ in range(2))
    one.take(READER.encode("a")[0])
    allowed = other.allowed(VOCAB)
    assert allowed is not None
    assert allowed[READER.encode("c")[0]]


@pytest.mark.parametrize("beyond", [VOCAB, VOCAB + 1000, 4_000_000_000])
def test_a_token_without_logits_is_no_obstacle(beyond: int) -> None:
    """Gemma 3 text has one, of the images that its larger kin reads: no request with a grammar was
    served."""
    content = json.loads(TOKENIZER)
    token = {**content["added_tokens"][0], "id": beyond, "content": "<image>"}
    content["added_tokens"].append(token)
    compiler = GrammarCompiler(json.dumps(content).encode(), VOCAB, (EOS,))
    state = compiler.start(Grammar.choice(["yes", "no"]))
    for index in READER.encode("no"):
        allowed = state.allowed(VOCAB)
        assert allowed is not None
        assert allowed[index]
        state.take(index)
    allowed = state.allowed(VOCAB)
    assert allowed is not None
    assert np.flatnonzero(allowed).tolist() == [EOS]
    assert state.failure is None


def test_without_the_library_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingDependencyError, match="grammar"):
        GrammarCompiler(TOKENIZER, VOCAB, (EOS,)).start(Grammar.json_object())
    with pytest.raises(MissingDependencyError, match="grammar"):
        check(Grammar.json_object())


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="no end-of-sequence"):
        GrammarCompiler(TOKENIZER, VOCAB, ()).start(Grammar.json_object())
