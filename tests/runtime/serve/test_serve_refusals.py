"""Requests that cannot be served whatever their parameters: errors in OpenAI's JSON, no crash."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from runtime.serve.asked import Asked
from runtime.serve.errors import CONTEXT, ApiError
from runtime.serve.http.requests import ChatRequest, CompletionRequest
from tests.runtime.serve.house import CHAT, HI, JSON, House, complete, error_of, in_house


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


def test_a_prompt_has_to_leave_room_for_one_token() -> None:
    """One that fills the context is to blame itself, not the length that nobody asked for."""
    asked = Asked((), {}, None, None, "prompt", "max_tokens", None)
    assert asked.for_prompt([1] * 7, 8)["max_tokens"] == 1
    with pytest.raises(ApiError, match="shorten the prompt") as refusal:
        asked.for_prompt([1] * 8, 8)
    assert (refusal.value.code, refusal.value.param) == (CONTEXT, "prompt")
