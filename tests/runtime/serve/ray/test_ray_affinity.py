"""Which requests share a key, and so a replica."""

from __future__ import annotations

from typing import Any

from runtime.serve.http.requests import ChatRequest, CompletionRequest
from runtime.serve.ray.affinity import NUM_FIRST_TOKENS, key_of

FIRST = {"role": "user", "content": "Name a river."}
SYSTEM = {"role": "system", "content": "Be brief."}


def chat(*messages: dict[str, str], **more: Any) -> str:
    return key_of(ChatRequest(messages=list(messages), **more), range(100))


def text(prompt: list[int], **more: Any) -> str:
    return key_of(CompletionRequest(prompt=prompt, **more), prompt)


def test_a_conversation_keeps_its_key_from_turn_to_turn() -> None:
    first = chat(SYSTEM, FIRST)
    answer, question = {"role": "assistant", "content": "Po"}, {"role": "user", "content": "More"}
    assert chat(SYSTEM, FIRST, answer, question) == first


def test_conversations_under_one_instruction_have_keys_of_their_own() -> None:
    assert chat(SYSTEM, FIRST) != chat(SYSTEM, {"role": "user", "content": "Name a hill."})


def test_a_name_of_the_clients_wins_over_what_is_said() -> None:
    other = {"role": "user", "content": "Something else."}
    assert chat(FIRST, prompt_cache_key="a") == chat(other, prompt_cache_key="a")
    assert chat(FIRST, user="a") == chat(other, user="a")
    assert chat(FIRST, prompt_cache_key="a", user="b") == chat(FIRST, prompt_cache_key="a")
    assert chat(FIRST, user="a") != chat(FIRST, user="b")
    assert text([1], user="a") == text([2], user="a")


def test_salts_do_not_share_a_key() -> None:
    assert chat(FIRST, cache_salt="a") != chat(FIRST, cache_salt="b")
    assert chat(FIRST, cache_salt="a", user="u") != chat(FIRST, cache_salt="b", user="u")


def test_prompts_belong_together_by_their_first_tokens() -> None:
    head = list(range(NUM_FIRST_TOKENS))
    assert text([*head, 7]) == text([*head, 8, 9])
    assert text([*head[:-1], 500]) != text(head)


def test_a_key_does_not_show_the_name_in_it() -> None:
    assert "alice" not in chat(FIRST, user="alice")
