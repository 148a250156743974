"""Answers in OpenAI's shapes: whole and streamed, texts and chats."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from tests.runtime.serve.fake_engines import ANSWER
from tests.runtime.serve.house import CHAT, HI, House, chat, complete, events, in_house, post


def test_a_completion_has_openais_parts() -> None:
    answer = complete(max_tokens=100 - len("hi")).json()
    assert answer["object"] == "text_completion"
    assert answer["model"] == "fake"
    assert answer["id"].startswith("cmpl-")
    [choice] = answer["choices"]
    assert choice["text"] == ANSWER
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": len(ANSWER),
        "total_tokens": 2 + len(ANSWER),
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_a_chat_has_openais_parts_and_fills_the_context_by_default() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
        assert answer["object"] == "chat.completion"
        [choice] = answer["choices"]
        assert choice["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
        [(prompt, law, options)] = house.engines.asked
        assert prompt == "<user>hi"
        assert options["max_tokens"] == 100 - len(prompt)
        assert law.temperature == 1

    in_house(work)


def test_a_completion_has_sixteen_tokens_unless_it_says_so() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        await client.post("/v1/completions", json=HI)
        assert house.engines.asked[0][2]["max_tokens"] == 16

    in_house(work)


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_stream_says_what_the_whole_answer_says(path: str, n: int) -> None:
    is_chat = path.startswith("chat")
    body = {**(CHAT if is_chat else HI), "n": n, "seed": 1, "max_tokens": 20}
    whole = post(f"/v1/{path}", body).json()
    streaming = {**body, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events(post(f"/v1/{path}", streaming))
    texts, endings = [""] * n, [None] * n
    for chunk in chunks[:-1]:
        assert chunk["usage"] is None
        assert chunk["id"] == chunks[0]["id"]
        for choice in chunk["choices"]:
            index = choice["index"]
            assert endings[index] is None, "a chunk behind a choice's last"
            texts[index] += choice["delta"].get("content", "") if is_chat else choice["text"]
            endings[index] = choice["finish_reason"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    for choice, text, ending in zip(whole["choices"], texts, endings, strict=True):
        assert text == (choice["message"]["content"] if is_chat else choice["text"])
        assert ending == choice["finish_reason"]


def test_a_chats_stream_begins_with_the_role_and_without_usage_unless_asked() -> None:
    first, *rest = events(chat(stream=True))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in (first, *rest))
    assert rest[-1]["choices"][0]["delta"] == {}


def test_several_prompts_and_choices_are_counted_once_a_prompt() -> None:
    for prompts in (["one", "four"], [[5, 6, 7], [1, 2, 3, 4]]):
        answer = complete(prompt=prompts, n=2, max_tokens=3).json()
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
        assert answer["usage"]["prompt_tokens"] == 3 + 4
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
        assert answer["usage"]["completion_tokens"] == 4 * 3


def test_choices_have_seeds_in_a_row_and_a_request_without_one_another_each_time() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        await client.post("/v1/completions", json={**HI, "n": 3, "seed": -1})
        seeds = [law.seed for _, law, _ in house.engines.asked]
        assert seeds == [2**64 - 1, 0, 1]
        for _ in range(2):
            await client.post("/v1/completions", json=HI)
        first, second = (law.seed for _, law, _ in house.engines.asked[3:])
        assert first != second

    in_house(work)


def test_logprobs_of_a_text_are_parallel_lists() -> None:
    """L1-L3: zero, missing or null ones; -inf is no JSON."""
    [choice] = complete(logprobs=2, max_tokens=5).json()["choices"]
    entries = choice["logprobs"]
    assert entries["tokens"] == list("Hello")
    assert entries["token_logprobs"] == [-1.5] * 5
    assert entries["top_logprobs"] == [{"<eos>": -0.5, "ä": -9999.0}] * 5
    assert entries["text_offset"] == [0, 1, 2, 3, 4]


def test_logprobs_of_a_streamed_text_are_those_of_the_whole() -> None:
    [whole] = complete(logprobs=1, max_tokens=5).json()["choices"]
    joined: dict[str, list[Any]] = {}
    for chunk in events(complete(logprobs=1, max_tokens=5, stream=True)):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined.setdefault(name, []).extend(values)
    assert joined == whole["logprobs"]


def test_logprobs_of_a_chat_have_the_bytes_of_each_token() -> None:
    [choice] = chat(logprobs=True, top_logprobs=1, max_tokens=9).json()["choices"]
    entries = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in entries) == ANSWER[:9]
    assert entries[-1]["bytes"] == list("ö".encode())
    [top] = entries[0]["top_logprobs"]
    assert top == {"token": "<eos>", "logprob": -0.5, "bytes": list(b"<eos>")}


def test_without_logprobs_there_are_none() -> None:
    assert chat(logprobs=False).json()["choices"][0]["logprobs"] is None
    assert complete().json()["choices"][0]["logprobs"] is None


def test_every_parameter_reaches_the_engines() -> None:
    """S4, S8, S10: accepted by the API and dropped."""
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3,
        "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "logit_bias": {"17": -100, "5": 2.5}, "min_tokens": 2, "max_tokens": 9,
        "stop": ["a", "b"], "stop_token_ids": [8], "ignore_eos": True, "logprobs": 4,
        "bad_words": ["no"], "cache_salt": "mine",
    }  # fmt: skip

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        assert (await client.post("/v1/completions", json={**HI, **body})).status_code == 200
        [(_, law, options)] = house.engines.asked
        for name in ("temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty",
                     "presence_penalty", "frequency_penalty"):  # fmt: skip
            assert getattr(law, name) == body[name], name
        assert dict(law.logit_bias) == {17: -100.0, 5: 2.5}
        for name in ("min_tokens", "max_tokens", "stop", "stop_token_ids", "ignore_eos",
                     "logprobs", "bad_words", "cache_salt"):  # fmt: skip
            assert options[name] == body[name], name

    in_house(work)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"response_format": {"type": "json_object"}}, "JSON schema"),
        ({"response_format": {"type": "json_schema",
                              "json_schema": {"name": "a", "schema": {"type": "integer"}}}},
         "JSON schema"),
        ({"guided_json": {"type": "integer"}}, "JSON schema"),
        ({"guided_regex": "[0-9]+"}, "regular expression"),
        ({"guided_choice": ["yes", "no"]}, "choice"),
        ({"guided_grammar": 'start: "a"'}, "grammar"),
        ({"structured_outputs": {"regex": "[0-9]+"}}, "regular expression"),
        ({"structured_outputs": {"json": {"type": "integer"}}}, "JSON schema"),
    ],
)  # fmt: skip
def test_what_the_text_has_to_be_reaches_the_engines(body: dict[str, Any], kind: str) -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        response = await client.post("/v1/completions", json={**HI, **body})
        assert response.status_code == 200, response.text
        grammar = house.engines.asked[0][2]["grammar"]
        assert str(grammar.kind) == kind
        assert house.engines.llm.compiled == [grammar], "compiled off the event loop"

    in_house(work)


def test_a_text_that_could_not_become_what_was_asked_for_does_not_look_complete() -> None:
    """It ended with "stop", and half of a JSON object was read as all of it."""
    asked = {"prompt": "ungrammatical", "guided_json": {"type": "object"}}
    [choice] = complete(**asked).json()["choices"]
    assert choice["finish_reason"] == "abort"
    *_, last = events(complete(**asked, stream=True))
    assert last["choices"][0]["finish_reason"] == "abort"


def test_text_asks_for_nothing() -> None:
    async def work(house: House, client: httpx2.AsyncClient) -> None:
        await client.post("/v1/completions", json={**HI, "response_format": {"type": "text"}})
        assert "grammar" not in house.engines.asked[0][2]

    in_house(work)


def test_messages_are_said_as_they_were_given() -> None:
    messages = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "d"},
    ]

    async def work(house: House, client: httpx2.AsyncClient) -> None:
        response = await client.post("/v1/chat/completions", json={"messages": messages})
        assert response.status_code == 200, response.text
        assert house.engines.asked[0][0] == "<system>be kind<user>ab<assistant>c<user>d"

    in_house(work)


def test_how_the_drafts_fared_is_told_where_the_server_is_asked_to() -> None:
    found = post("/v1/completions", HI, spec_metrics=True).json()["metrics"]
    assert found["speculative_decoding"] == {
        "mean_acceptance_length": len(ANSWER) / 4,
        "draft_acceptance_rate": 5 / 8,
        "acceptance_histogram": [4],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 5,
        "num_draft_tokens": 8,
    }
    assert "metrics" not in complete().json()
