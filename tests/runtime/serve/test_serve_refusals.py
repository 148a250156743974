"""Requests that cannot be served as asked: 400 in OpenAI's JSON, naming what is wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from engines.errors import MissingDependencyError, UsageError
from runtime.serve.asked import Asked
from runtime.serve.errors import CONTEXT, ApiError, as_api_error
from runtime.serve.http.requests import ChatRequest, CompletionRequest
from tests.runtime.serve.house import CHAT, HI, JSON, House, chat, complete, in_house, post


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error, which has OpenAI's four parts."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"foo": 1}, "foo"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"include_stop_str_in_output": True}, "include_stop_str_in_output"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x.[key]"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"seed": 2**64}, "seed"),
        ({"bad_words": ["x" * 257]}, "bad_words.0"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": ["a", 3]}, "prompt.1"),
        ({"prompt": None}, "prompt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"guided_json": "no JSON"}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "a" * 65_537}, "guided_regex"),
        (
            {"guided_regex": "a", "structured_outputs": {"choice": ["b"]}},
            "structured_outputs.choice",
        ),
    ],
)
def test_a_completions_parameter_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    response = complete(**body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param.removesuffix(".[key]")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities.0"),
        ({"store": True}, "store"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"verbosity": "high"}, "verbosity"),
        ({"moderation": {"model": "m"}}, "moderation"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"messages": [{"role": "user", "content": "x" * 200}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages"),
        ({"max_completion_tokens": 99}, "max_completion_tokens"),
        ({"max_tokens": 99}, "max_tokens"),
        ({"logprobs": 1}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.image_url",
        ),
    ],
)
def test_a_chats_parameter_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    response = chat(**body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        {"echo": False, "suffix": None, "best_of": 1, "stream": False, "stream_options": None},
        {
            "skip_special_tokens": True,
            "logprobs": None,
            "user": "me",
            "logit_bias": {},
            "top_k": -1,
        },
    ],
)
def test_what_asks_for_nothing_is_no_reason_to_refuse(body: dict[str, Any]) -> None:
    assert complete(**body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        dict.fromkeys(set(ChatRequest.model_fields) - {"messages"}),
        {
            "n": 1, "stream": False, "logprobs": False, "stop": [], "logit_bias": {}, "tools": [],
            "tool_choice": "none", "parallel_tool_calls": True, "function_call": "none",
            "response_format": {"type": "text"}, "modalities": ["text"], "store": False,
            "metadata": {"run": "7"}, "user": "me", "safety_identifier": "me",
            "prompt_cache_key": "k", "prompt_cache_retention": "in_memory",
            "service_tier": "auto", "reasoning_effort": "none", "verbosity": "medium",
        },
        {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": False}},
        {"stream": True, "stream_options": {}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": None},
                {
                    "role": "assistant", "content": "yes", "refusal": None, "annotations": [],
                    "audio": None, "function_call": None, "tool_calls": None, "reasoning": None,
                    "reasoning_content": None,
                },
                {"role": "user", "content": "so"},
            ],
        },
    ],
)  # fmt: skip
def test_what_clients_send_along_is_no_reason_to_refuse(body: dict[str, Any]) -> None:
    """The official client, and those over it, send nulls, defaults and labels."""
    response = chat(**body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("params", "model"),
    [
        (openai.types.CompletionCreateParams, CompletionRequest),
        (openai.types.chat.CompletionCreateParams, ChatRequest),
    ],
)
def test_every_parameter_of_the_official_client_is_known_by_name(params: Any, model: Any) -> None:
    """So that none of them is called unknown: it is served, or said not to be."""
    names = {name for each in get_args(params) for name in each.__annotations__}
    assert "seed" in names
    assert names <= set(model.model_fields)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("min-tokens is 9, more than max-tokens, which is 6", "min_tokens"),
        ("stop-token-ids has token id 7, the vocabulary ends at 5", "stop_token_ids"),
        ("the prompt has token id 900, the vocabulary ends at 5", "prompt"),
        ("bad-words may leave no token to go on with; give fewer of them", "bad_words"),
        ("min-tokens cannot go with a grammar, which ...; leave one away", "min_tokens"),
        ("this model has no end-of-sequence token, so ...", None),
    ],
)
def test_what_the_engines_refuse_names_the_parameter_too(message: str, param: str | None) -> None:
    assert as_api_error(UsageError(message)).param == param


def test_a_library_that_is_not_there_is_not_asked_for_again_and_again() -> None:
    """Clients try what failed with 500 once more."""
    error = as_api_error(
        MissingDependencyError("llguidance", "grammar", "a grammar"), "guided_json"
    )
    assert (error.status, error.param) == (400, "guided_json")


def test_two_wishes_that_exclude_each_other_are_refused() -> None:
    assert "both" in error_of(complete(guided_regex="a", guided_choice=["b"]))["message"]
    assert "logprobs" in error_of(chat(top_logprobs=2))["message"]
    both = error_of(chat(max_tokens=3, max_completion_tokens=4))
    assert both["param"] == "max_completion_tokens"
    assert chat(max_tokens=3, max_completion_tokens=3).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("body", "figures"),
    [
        ({"prompt": "x" * 100}, ("100 tokens", "100")),
        ({"prompt": "x" * 10, "max_tokens": 91}, ("10 tokens", "91", "100", "at most 90")),
        ({"prompt": "x" * 5000}, ("5000 characters",)),
    ],
)
def test_what_does_not_fit_is_refused_with_the_figures(
    body: dict[str, Any], figures: tuple[str, ...]
) -> None:
    """T14: a shape beyond the profile."""
    response = complete(**body)
    assert response.status_code == 400
    error = error_of(response)
    assert error["code"] == "context_length_exceeded"
    for figure in figures:
        assert figure in error["message"]


def test_what_just_fits_is_served() -> None:
    assert complete(prompt="x" * 10, max_tokens=90).status_code == 200


def test_another_model_is_not_found_and_none_is_ours() -> None:
    response = complete(model="gpt-4o")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"
    assert "fake" in error_of(response)["message"]
    assert complete(model="fake").status_code == complete(model=None).status_code == 200


def test_a_model_without_a_chat_template_says_where_to_go() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        house.engines.llm.has_chat_template = False
        response = await client.post("/v1/chat/completions", json=CHAT)
        assert response.status_code == 400
        assert "/v1/completions" in error_of(response)["message"]

    in_house(work)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b'{"prompt": "a"', b"\xff", b"[1]", b"null", b"3", b'"x"', b"[" * 100_000,
        b'{"prompt": "\\ud800"}', b'{"\\ud800": 1, "prompt": "a"}',
        b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'{"prompt": "a", "prompt": ["b"], "x": {}}',
    ],
    ids=lambda body: repr(body[:30]),
)  # fmt: skip
def test_a_body_that_is_no_request_gets_an_error_not_a_crash(body: bytes) -> None:
    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        response = await client.post("/v1/completions", content=body, headers=JSON)
        assert response.status_code == 400
        error_of(response)

    in_house(work)


def test_a_body_that_does_not_say_it_is_json_is_refused() -> None:
    """A web page of another site may send that without asking first."""

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        for headers in ({"content-type": "text/plain"}, {"content-type": ""}):
            response = await client.post("/v1/completions", content=json.dumps(HI), headers=headers)
            assert response.status_code == 400
        assert house.engines.asked == []

    in_house(work)


MANY = 50_000


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (CompletionRequest, {"prompt": [-1] * MANY}),
        (CompletionRequest, {"prompt": [[-1]] * MANY}),
        (CompletionRequest, {"prompt": [1] * MANY + ["a"]}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {f"x{i}": 1 for i in range(MANY)}}),
        (CompletionRequest, {"prompt": "a", "guided_json": {"a": [float("nan")] * MANY}}),
        (CompletionRequest, {"prompt": "a", **{f"x{i}": 1 for i in range(MANY)}}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{f"x{i}": 1 for i in range(MANY)}]}),
    ],
)
def test_a_body_with_a_million_faults_is_refused_for_a_few(model: Any, body: object) -> None:
    """An error for each held the event loop, and all streams with it, for minutes."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    assert refused.value.error_count() < 10


SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields, "other"})
FAMILIAR = House()
PATHS = st.sampled_from(["completions", "chat/completions"])


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4), PATHS, st.booleans())
def test_whatever_is_asked_the_answer_is_no_crash(
    body: dict[str, Any], path: str, is_based: bool
) -> None:
    base = (CHAT if path.startswith("chat") else HI) if is_based else {}
    content = json.dumps(base | body).encode()

    async def ask() -> httpx2.Response:
        async with FAMILIAR.client() as client:
            return await client.post(f"/v1/{path}", content=content, headers=JSON)

    response = asyncio.run(ask())
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error_of(response)
    assert FAMILIAR.service.gate.num_inside == 0


def test_wrong_addresses_and_methods_get_the_same_json() -> None:
    async def work(_house: House, client: httpx2.AsyncClient) -> None:
        nothing = await client.get("/v1/embeddings")
        assert (nothing.status_code, error_of(nothing)["code"]) == (404, "not_found")
        wrong = await client.get("/v1/completions")
        assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "POST"

    in_house(work)


def test_more_choices_than_a_request_may_ask_for_are_refused() -> None:
    response = post("/v1/completions", {**HI, "n": 5}, max_choices=4)
    assert (response.status_code, error_of(response)["param"]) == (400, "n")
    response = post("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2}, max_choices=4)
    assert "6" in error_of(response)["message"]


def test_a_prompt_has_to_leave_room_for_one_token() -> None:
    """One that fills the context is to blame itself, not the length that nobody asked for."""
    asked = Asked((), {}, None, None, "prompt", "max_tokens", None)
    assert asked.for_prompt([1] * 7, 8)["max_tokens"] == 1
    with pytest.raises(ApiError, match="shorten the prompt") as refusal:
        asked.for_prompt([1] * 8, 8)
    assert (refusal.value.code, refusal.value.param) == (CONTEXT, "prompt")
