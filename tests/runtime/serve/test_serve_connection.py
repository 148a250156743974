"""Connections that would be held forever: by a head that never ends, by nobody who reads."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from runtime.serve.http.connection import HEAD_S, STALL_S, Connection
from tests.helpers.virtual_time import run_virtually

REQUEST = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n"


class FakeTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.num_buffered = 0
        self.is_aborted = False
        self.protocol: Connection

    def set_write_buffer_limits(self, high: int | None = None, **_low: object) -> None:
        assert high == 0, "what is left of an answer is not watched"

    def get_write_buffer_size(self) -> int:
        return self.num_buffered

    def abort(self) -> None:
        self.is_aborted = True
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def is_closing(self) -> bool:
        return self.is_aborted


async def connected() -> tuple[Connection, FakeTransport]:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    config = uvicorn.Config(app, interface="asgi3", lifespan="off", log_config=None)
    connection = Connection(config, ServerState(), {}, asyncio.get_running_loop())
    transport = FakeTransport()
    transport.protocol = connection
    connection.connection_made(transport)
    return connection, transport


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_head_has_its_time_however_many_bytes_come_of_it(is_whole: bool) -> None:
    async def work() -> bool:
        connection, transport = await connected()
        for byte in REQUEST if is_whole else REQUEST[:-1]:
            connection.data_received(bytes([byte]))
            await asyncio.sleep(HEAD_S / 2 / len(REQUEST))
        await asyncio.sleep(HEAD_S)
        return transport.is_aborted

    assert run_virtually(work()) is not is_whole


def test_a_reader_has_all_the_time_it_wants_while_it_reads() -> None:
    """Else an answer that is not taken keeps its place in the queue for good."""

    async def work() -> list[bool]:
        connection, transport = await connected()
        connection.data_received(REQUEST)
        transport.num_buffered = 1000
        connection.pause_writing()
        seen = []
        for _ in range(3):
            transport.num_buffered -= 1
            await asyncio.sleep(STALL_S)
            seen.append(transport.is_aborted)
        await asyncio.sleep(STALL_S)
        return [*seen, transport.is_aborted]

    assert run_virtually(work()) == [False, False, False, True]


def test_whoever_has_read_all_is_not_watched_any_more() -> None:
    async def work() -> bool:
        connection, transport = await connected()
        connection.data_received(REQUEST)
        connection.pause_writing()
        connection.resume_writing()
        await asyncio.sleep(2 * STALL_S)
        return transport.is_aborted

    assert not run_virtually(work())
