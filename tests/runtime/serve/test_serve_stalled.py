"""Clients that never read, on real sockets whose buffers are small."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
import uvicorn

from runtime.serve.http import connection
from runtime.serve.http.connection import Connection
from runtime.serve.process import bind, url_of
from tests.runtime.serve.house import HI, House

LONG = {**HI, "max_tokens": 98, "logprobs": 20}
"""Some 50 kB, several times what the sockets hold."""


@asynccontextmanager
async def served(house: House) -> AsyncIterator[tuple[uvicorn.Server, socket.socket]]:
    house.engines.answer = "x" * 98
    config = uvicorn.Config(house.app, http=Connection, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with bind("127.0.0.1", 0) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            yield server, bound
        finally:
            server.should_exit = True
            await serving


async def ask_and_never_read(bound: socket.socket, body: dict[str, object]) -> socket.socket:
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    asking.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(asking, bound.getsockname())
    content = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    head += f"Connection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    await loop.sock_sendall(asking, head.encode() + content)
    return asking


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.001)


def run(work: Callable[[House, uvicorn.Server, socket.socket], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        house = House()
        async with served(house) as (server, bound):
            await work(house, server, bound)
        assert house.service.gate.num_inside == 0

    asyncio.run(all_of_it())


def test_whoever_does_not_read_holds_up_nobody_else() -> None:
    async def work(house: House, server: uvicorn.Server, bound: socket.socket) -> None:
        with await ask_and_never_read(bound, {**LONG, "stream": True}):
            await until(
                lambda: any(each.flow.write_paused for each in server.server_state.connections)
            )
            async with httpx2.AsyncClient(base_url=url_of(bound)) as client:
                asked = [client.post("/v1/completions", json=LONG) for _ in range(3)]
                for answer in await asyncio.gather(*asked):
                    assert answer.json()["choices"][0]["text"] == "x" * 98
            assert house.service.gate.num_inside == 1, "it was not held up at all"
            assert house.engines.num_running == 0, "its text waits for it, not the engines"

    run(work)


@pytest.mark.parametrize("is_stream", [True, False])
def test_whoever_does_not_read_loses_place_and_connection(
    monkeypatch: pytest.MonkeyPatch, is_stream: bool
) -> None:
    """Streams kept their place in the queue for good; whole answers, which are short, kept their
    connection."""
    monkeypatch.setattr(connection, "STALL_S", 0.01)

    async def work(house: House, server: uvicorn.Server, bound: socket.socket) -> None:
        with await ask_and_never_read(bound, {**LONG, "stream": is_stream}):
            await until(lambda: bool(house.engines.asked))
            await house.service.gate.wait_until_empty()
            await until(lambda: not server.server_state.connections)

    run(work)
