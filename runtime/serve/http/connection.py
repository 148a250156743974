"""One connection: what a client may not do to it, which only the socket's end can see."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 30.0
"""How long the head of a request may take to arrive."""
STALL_S = 60.0
"""How long a client may take nothing of what waits for it."""


class Connection(H11Protocol):
    """uvicorn's, which waits forever for the head of a request, and for whoever does not read: an
    answer that is not taken would keep its place in the house for good."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_alarm: asyncio.TimerHandle | None = None
        self._stall_alarm: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # So that any byte that is not taken is noticed, the last ones of an answer, too.
        transport.set_write_buffer_limits(high=0)
        self._watch_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_alarm is not None:
            self._stall_alarm.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        for alarm in (self._head_alarm, self._stall_alarm):
            if alarm is not None:
                alarm.cancel()
        super().connection_lost(exc)

    def _watch_head(self) -> None:
        is_complete = self.cycle is not None and not self.cycle.response_complete
        if self._head_alarm is None and not is_complete:
            self._head_alarm = self.loop.call_later(HEAD_S, self.transport.abort)
        elif self._head_alarm is not None and is_complete:
            self._head_alarm.cancel()
            self._head_alarm = None

    def _watch_writing(self) -> None:
        """A slow reader has all the time it wants, as long as it reads."""
        before = self.transport.get_write_buffer_size()

        def look() -> None:
            if self.transport.get_write_buffer_size() < before:
                self._watch_writing()
            else:
                self.transport.abort()

        self._stall_alarm = self.loop.call_later(STALL_S, look)
