"""The choices of one request on their way: merged as they come, ended together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from time import perf_counter

from runtime.completion import Completion
from runtime.serve.api import Piece, Pieces
from runtime.serve.errors import ApiError
from runtime.serve.gate import Place


class Timing:
    """When pieces of one request came. Seconds since it arrived."""

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.first_s: float | None = None
        self.intervals_s: list[float] = []
        self._last: dict[int, float] = {}

    def piece(self, index: int) -> None:
        now = perf_counter()
        if self.first_s is None:
            self.first_s = now - self.started_at
        if index in self._last:
            self.intervals_s.append(now - self._last[index])
        self._last[index] = now

    @property
    def total_s(self) -> float:
        return perf_counter() - self.started_at

    @property
    def decode_s(self) -> float | None:
        """Since the first piece: without what it waited; None where there was none."""
        return None if self.first_s is None else self.total_s - self.first_s


class Generation:
    """Owns the streams and the place of one request. ``close`` it, whatever happened.

    ``prompt_lens``: tokens of each prompt; the choices of the first come first.
    ``completions[i]`` is set when choice i has ended.
    """

    def __init__(
        self,
        streams: Sequence[Pieces],
        place: Place,
        timing: Timing,
        *,
        prompt_lens: Sequence[int],
        timeout_s: float | None,
        on_close: Callable[[Generation], None],
    ) -> None:
        self.completions: list[Completion | None] = [None] * len(streams)
        self.error: Exception | None = None
        self.timing = timing
        self._prompt_lens = prompt_lens
        self._streams = streams
        self._place = place
        self._timeout_s = timeout_s
        self._on_close = on_close
        self._is_closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._alarm: asyncio.TimerHandle | None = None
        self._queue: asyncio.Queue[tuple[int, Piece | Completion | Exception]] = asyncio.Queue()

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts, each once, however many choices continue it."""
        return sum(self._prompt_lens)

    @property
    def num_cached_tokens(self) -> int:
        """Those of them that an earlier text had left in the cache, by each prompt's first choice:
        the others may find that one's."""
        n = len(self._streams) // len(self._prompt_lens)
        firsts = self.completions[::n]
        return sum(each.stats.num_cached for each in firsts if each is not None)

    async def events(self) -> AsyncIterator[tuple[int, Piece | Completion]]:
        """(choice, what came of it) as it comes; its Completion is a choice's last.

        Raises what the engines raised, and ApiError (504) when it takes too long.
        """
        self._tasks = [
            asyncio.create_task(self._pump(index, stream))
            for index, stream in enumerate(self._streams)
        ]
        self._set_alarm()
        num_left = len(self._streams)
        while num_left:
            index, item = await self._queue.get()
            if isinstance(item, Exception):
                self.error = item
                raise item
            if isinstance(item, Completion):
                num_left -= 1
                self.completions[index] = item
            else:
                self.timing.piece(index)
            yield index, item

    async def finish(self) -> list[Completion]:
        """All choices, complete."""
        async for _ in self.events():
            pass
        return [each for each in self.completions if each is not None]

    def abort(self) -> None:
        """The server stops: end all choices with what there is, "cancelled"."""
        for stream in self._streams:
            stream.cancel()

    def close(self) -> None:
        """Cancel what still runs and give the place back. Idempotent, and never waits: it has to
        work in a task that is being cancelled."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        self.abort()
        self._place.leave(self.timing.decode_s)
        self._on_close(self)

    async def _pump(self, index: int, stream: Pieces) -> None:
        try:
            async for piece in stream:
                self._queue.put_nowait((index, piece))
            self._queue.put_nowait((index, stream.completion))
        except Exception as error:
            self._queue.put_nowait((index, error))

    def _set_alarm(self) -> None:
        """One timer for the whole request: a limit on each wait would cost a task a piece."""
        if self._timeout_s is None:
            return
        error = ApiError(
            504,
            f"the answer was not complete after {self._timeout_s:g} s, this server's limit; ask "
            "for fewer tokens, or try when it is less busy",
            kind="timeout_error",
            code="timeout",
        )
        left_s = max(0.0, self._timeout_s - self.timing.total_s)
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(left_s, self._queue.put_nowait, (0, error))
