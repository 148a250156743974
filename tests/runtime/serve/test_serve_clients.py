"""The official client is the judge of what OpenAI's API is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import openai
import pytest
from starlette.testclient import TestClient

from engines.errors import BackendError
from tests.runtime.serve.fake_engines import ANSWER
from tests.runtime.serve.house import House

USER = {"role": "user", "content": "hi"}


def with_client(work: Callable[[House, openai.AsyncOpenAI], Awaitable[None]]) -> None:
    async def run() -> None:
        house = House(api_key="sesame")
        async with (
            house.client() as http,
            openai.AsyncOpenAI(
                base_url="http://server/v1", api_key="sesame", http_client=http, max_retries=0
            ) as client,
        ):
            await work(house, client)

    asyncio.run(run())


def test_chats_and_texts_whole_and_streamed() -> None:
    async def work(_house: House, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="fake", messages=[USER], logprobs=True)
        assert answer.choices[0].message.content == ANSWER
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == len(answer.choices[0].logprobs.content)
        text = await client.completions.create(model="fake", prompt="hi", max_tokens=3, logprobs=1)
        assert text.choices[0].text == ANSWER[:3]
        assert text.choices[0].logprobs.tokens == list(ANSWER[:3])
        pieces, usage = "", None
        async for chunk in await client.chat.completions.create(
            model="fake", messages=[USER], stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            pieces += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert pieces == ANSWER
        assert usage is not None
        assert usage.completion_tokens == len(ANSWER)

    with_client(work)


def test_the_clients_own_helper_for_streams_understands_ours() -> None:
    async def work(_house: House, client: openai.AsyncOpenAI) -> None:
        async with client.chat.completions.stream(model="fake", messages=[USER]) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == ANSWER

    with_client(work)


def test_extra_parameters_of_vllm_come_in_the_clients_extra_body() -> None:
    async def work(house: House, client: openai.AsyncOpenAI) -> None:
        await client.completions.create(
            model="fake", prompt="hi", extra_body={"top_k": 3, "min_tokens": 2}
        )
        assert house.engines.asked[0][1].top_k == 3

    with_client(work)


def test_models_are_listed_and_found() -> None:
    async def work(_house: House, client: openai.AsyncOpenAI) -> None:
        assert [model.id async for model in client.models.list()] == ["fake"]
        assert (await client.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError, match="fake"):
            await client.models.retrieve("other")

    with_client(work)


def test_errors_are_the_exceptions_that_the_client_knows() -> None:
    async def work(house: House, client: openai.AsyncOpenAI) -> None:
        complete = client.completions.create
        with pytest.raises(openai.BadRequestError, match="temperature") as bad:
            await complete(model="fake", prompt="hi", temperature=-1)
        assert bad.value.param == "temperature"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").completions.create(model="fake", prompt="a")
        with pytest.raises(openai.InternalServerError, match="on purpose"):
            await complete(model="fake", prompt="broken")
        stream = await complete(model="fake", prompt="broken", stream=True)
        with pytest.raises(openai.APIError, match="on purpose"):
            async for _ in stream:
                pass
        house.engines.error = BackendError("gone")
        assert (await complete(model="fake", prompt="hi")).choices, "engines may recover"

    with_client(work)


def test_the_synchronous_client_gets_the_same() -> None:
    house = House()
    with TestClient(house.app, base_url="http://server") as http:
        client = openai.OpenAI(base_url="http://server/v1", api_key="any", http_client=http)
        answer = client.chat.completions.create(model="fake", messages=[USER], n=2)
        assert [choice.message.content for choice in answer.choices] == [ANSWER] * 2
        chunks = client.completions.create(model="fake", prompt="hi", stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == ANSWER
