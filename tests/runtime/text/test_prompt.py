"""Prompts as text and as messages, and what is no such thing."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engines.errors import CapacityError, UsageError
from runtime.text.prompt import Prompts
from runtime.text.tokenizer import Tokenizer
from tests.helpers.tiny_bundle import tiny_bundle

TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "why?"},
]


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    bundle = tiny_bundle(max_batch=1)
    return Prompts(bundle, Tokenizer(bundle.tokenizer_path.read_bytes()))


def test_a_conversation_is_all_its_turns_in_order(prompts: Prompts) -> None:
    tokenizer = Tokenizer(tiny_bundle(max_batch=1).tokenizer_path.read_bytes())
    text = tokenizer.decode(prompts.encode_chat(TURNS))
    places = [text.index(turn["content"]) for turn in TURNS]
    assert places == sorted(places)
    longer = prompts.encode_chat(TURNS)
    assert prompts.encode_chat(TURNS[:2]) != longer
    assert prompts.encode_chat([dict(turn) for turn in TURNS]) == longer


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages is empty"),
        ("hello", "messages is a str"),
        ({"role": "user", "content": "x"}, "messages is a dict"),
        (["hello"], "message 0 is a str"),
        ([{"role": "user"}], "message 0 has content None"),
        ([*TURNS, {"role": 3, "content": "x"}], "message 4 has role 3"),
        ([{"role": "user", "content": [{"type": "text"}]}], "message 0 has content"),
    ],
)
def test_what_are_no_messages_is_refused_by_its_number(prompts, messages, reason) -> None:
    with pytest.raises(UsageError, match=reason):
        prompts.encode_chat(messages)


@pytest.mark.parametrize("text", ["", None, b"hello", 3])
def test_what_is_no_text_is_refused(prompts: Prompts, text: Any) -> None:
    with pytest.raises(UsageError):
        prompts.encode(text)


def test_what_surely_does_not_fit_is_refused_before_it_is_encoded(prompts: Prompts) -> None:
    for ask in (
        prompts.encode,
        lambda text: prompts.encode_chat([{"role": "user", "content": text}]),
    ):
        with pytest.raises(CapacityError, match="characters, more than"):
            ask("x" * 1_000_000)


def test_a_bundle_without_a_template_takes_text_alone() -> None:
    bundle = tiny_bundle(max_batch=1)
    manifest = dataclasses.replace(bundle.manifest, chat_template=None)
    bare = dataclasses.replace(bundle, manifest=manifest)
    prompts = Prompts(bare, Tokenizer(bundle.tokenizer_path.read_bytes()))
    assert not prompts.has_chat_template
    assert prompts.encode("hello")
    with pytest.raises(UsageError, match="no chat template"):
        prompts.encode_chat(TURNS)
