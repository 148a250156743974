"""Parameters of requests: one that cannot be served as asked is refused by its name."""

from __future__ import annotations

from typing import Any, get_args

import openai
import pytest

from engines.errors import MissingDependencyError, UsageError
from runtime.serve.errors import as_api_error
from runtime.serve.http.requests import ChatRequest, CompletionRequest
from tests.runtime.serve.house import HI, chat, complete, error_of, post


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


def test_more_choices_than_a_request_may_ask_for_are_refused() -> None:
    response = post("/v1/completions", {**HI, "n": 5}, max_choices=4)
    assert (response.status_code, error_of(response)["param"]) == (400, "n")
    response = post("/v1/completions", {"prompt": ["a", "b", "c"], "n": 2}, max_choices=4)
    assert "6" in error_of(response)["message"]
