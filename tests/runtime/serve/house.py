"""A server over fake engines, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import httpx2
from starlette.types import Message

from runtime.serve.config import ServeConfig
from runtime.serve.http.app import create_app
from runtime.serve.http.edge import Line
from runtime.serve.rounds import RoundLog
from runtime.serve.service import Service
from tests.runtime.serve.fake_engines import FakeEngines

T = TypeVar("T")
HI: dict[str, Any] = {"prompt": "hi"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
JSON = {"content-type": "application/json"}


class House:
    """A service, its application, and the lines of its log."""

    def __init__(self, **config: Any) -> None:
        self.engines = FakeEngines()
        self.lines: list[Line] = []
        self.rounds = RoundLog(num_draft=4)
        self.service = Service(self.engines, self.rounds, ServeConfig(model_name="fake", **config))
        self.app = create_app(self.service, log=self.lines.append)

    def client(self, **options: Any) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://server", **options)


def in_house(work: Callable[[House, httpx2.AsyncClient], Awaitable[T]], **config: Any) -> T:
    """What ``work`` makes of a house and a client of it, on an event loop of its own."""

    async def run() -> T:
        house = House(**config)
        async with house.client() as client:
            found = await work(house, client)
        assert house.service.gate.num_inside == 0, "a place was not given back"
        return found

    return asyncio.run(run())


def post(path: str, body: object, **config: Any) -> httpx2.Response:
    """One request to a house of its own."""

    async def work(_house: House, client: httpx2.AsyncClient) -> httpx2.Response:
        return await client.post(path, json=body)

    return in_house(work, **config)


def complete(**body: Any) -> httpx2.Response:
    return post("/v1/completions", {**HI, **body})


def chat(**body: Any) -> httpx2.Response:
    return post("/v1/chat/completions", {**CHAT, **body})


def events(response: httpx2.Response) -> list[Any]:
    """Of a stream that has come to its end."""
    lines = [line for line in response.text.split("\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error, which has OpenAI's four parts."""
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found


class Visitor:
    """A client of raw ASGI: it reads what has been sent so far, and leaves when it likes."""

    def __init__(self, app: Any, path: str, body: dict[str, Any]) -> None:
        self.sent: list[Message] = []
        self.num_chunks = asyncio.Semaphore(0)
        self._left = asyncio.Event()
        self._body = json.dumps(body).encode()
        scope = {
            "type": "http", "asgi": {"spec_version": "2.3", "version": "3.0"},
            "http_version": "1.1", "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "root_path": "", "scheme": "http", "server": ("server", 80),
            "client": ("visitor", 1), "headers": [(b"content-type", b"application/json")],
        }  # fmt: skip
        self._is_asked = False
        coroutine: Coroutine[Any, Any, None] = app(scope, self._receive, self._send)
        self.task = asyncio.create_task(coroutine)

    async def _receive(self) -> Message:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if message["type"] == "http.response.body" and message["body"]:
            self.num_chunks.release()

    async def leave(self) -> None:
        self._left.set()
        await asyncio.wait_for(self.task, 5)

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def events(self) -> list[Any]:
        body = b"".join(each.get("body", b"") for each in self.sent).decode()
        datas = [line.removeprefix("data: ") for line in body.split("\n") if line]
        return [each if each == "[DONE]" else json.loads(each) for each in datas]
