"""The offline API for asyncio, and for many callers at once: their requests share the rounds.

    async with AsyncLLM.open("engines/bundles/demo") as llm:
        answers = await asyncio.gather(*(llm.generate(prompt, max_tokens=50) for prompt in prompts))
        async with llm.stream("Once upon a time", SamplingParams(0.8, seed=7)) as pieces:
            async for piece in pieces:
                print(piece, end="")

A request that nobody waits for any more is cancelled: a task that is cancelled, a stream that is
closed or forgotten. Everything but the awaiting may be done from any thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self, Unpack

from engines.errors import SsdError, UsageError
from runtime.completion import Completion, Delta
from runtime.engine_loop import EngineLoop, Job
from runtime.intake import Prompt
from runtime.llm import GREEDY, LLM
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams, choice_params
from runtime.text.prompt import Messages

__all__ = ["AsyncDeltas", "AsyncLLM", "AsyncTextStream"]


class AsyncLLM:
    """An LLM whose requests come from many tasks or threads, driven by a thread of its own."""

    def __init__(self, llm: LLM) -> None:
        """Takes over an open LLM, which is closed with this. Raises UsageError if it is busy."""
        self.llm = llm
        """For ``encode``, ``encode_chat``, ``compile``, ``limits`` and the like; its own
        ``generate`` and ``stream`` are refused meanwhile."""
        self._loop = EngineLoop(llm)
        self._closing = Lock()

    @classmethod
    def open(cls, bundle: Path | str, **options: Any) -> AsyncLLM:
        """``LLM.open``, which takes some seconds and raises what it raises."""
        llm = LLM.open(bundle, **options)
        try:
            return cls(llm)
        except BaseException:
            llm.close()
            raise

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return self._loop.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that no slot was free for yet."""
        return self._loop.num_waiting

    @property
    def error(self) -> SsdError | None:
        """What the engines raised last, until they do their work again."""
        return self._loop.error

    def deltas(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        **options: Unpack[GenerateOptions],
    ) -> AsyncDeltas:
        """Begin to continue a prompt: an iterator over what becomes certain, tokens and
        log-probabilities too. Raises as ``LLM.generate`` does, at once for what is wrong with the
        request; never waits for a free place."""
        return AsyncDeltas(self._begin(prompt, params, options))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        **options: Unpack[GenerateOptions],
    ) -> AsyncTextStream:
        """Begin to continue a prompt: an iterator over the pieces of its text."""
        return AsyncTextStream(self._begin(prompt, params, options))

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Continue a prompt; see ``LLM.generate``."""
        async with self.deltas(prompt, params, **options) as deltas:
            return await deltas.finished()

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams = GREEDY,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Answer a conversation; see ``LLM.chat``."""
        return await self.generate(self.llm.encode_chat(messages), params, **options)

    async def choices(
        self,
        prompt: Prompt,
        params: SamplingParams = GREEDY,
        *,
        n: int,
        **options: Unpack[GenerateOptions],
    ) -> list[Completion]:
        """``n`` answers to one prompt; see ``LLM.choices``."""
        async with AsyncExitStack() as stack:
            begun = [
                await stack.enter_async_context(self.deltas(prompt, each, **options))
                for each in choice_params(params, n)
            ]
            return [await deltas.finished() for deltas in begun]

    def close(self, *, drain_s: float | None = None) -> None:
        """Refuse new requests, let those that there are go on for ``drain_s`` seconds (None: not
        at all), cancel the rest, and free everything. Blocks; idempotent, from any thread."""
        self._loop.close(drain_s=drain_s)
        with self._closing:
            self.llm.close()

    async def aclose(self, *, drain_s: float | None = None) -> None:
        """``close``, while other tasks go on."""
        await asyncio.to_thread(self.close, drain_s=drain_s)

    def _begin(self, prompt: Prompt, params: SamplingParams, options: GenerateOptions) -> _Channel:
        channel = _Channel(self._loop)
        channel.job = self._loop.submit(
            prompt, params, options, on_delta=channel.put, on_end=channel.end
        )
        return channel

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()


class _Reader:
    """One text that comes, for one reader. Used up, ``completion`` tells the rest. Closing it
    early, leaving its ``async with`` or forgetting it cancels the request."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel

    @property
    def completion(self) -> Completion:
        """Raises UsageError while the text goes on, and what stopped it if something did."""
        ended = self._channel.ended
        if ended is None:
            raise UsageError("the text is not complete; use the stream up first, or close it")
        if isinstance(ended, Exception):
            raise ended
        return ended

    def cancel(self) -> None:
        """Want no more of it, from any thread: the iteration ends with what there is."""
        self._channel.cancel()

    async def aclose(self) -> None:
        """Cancel, and wait until the request's place is free; where another task reads, that one
        waits."""
        self.cancel()
        with suppress(Exception):  # the end, or what ``completion`` raises
            while True:
                await self._channel.get()

    async def _next(self) -> Delta:
        try:
            return await self._channel.get()
        except asyncio.CancelledError:
            self.cancel()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def __del__(self) -> None:
        self._channel.cancel()


class AsyncDeltas(_Reader):
    """An iterator over the deltas of one text."""

    async def finished(self) -> Completion:
        """Wait for the end, without looking at the rest of the deltas."""
        async for _ in self:
            pass
        return self.completion

    def __aiter__(self) -> AsyncIterator[Delta]:
        return self

    async def __anext__(self) -> Delta:
        return await self._next()


class AsyncTextStream(_Reader):
    """An iterator over the pieces of one text, each final."""

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while not (piece := (await self._next()).text):
            pass
        return piece


class _Channel:
    """From the engine loop's thread to the task that reads. Outlives a reader that is gone."""

    def __init__(self, loop: EngineLoop) -> None:
        self.job: Job | None = None
        self.ended: Completion | Exception | None = None
        self._loop = loop
        self._items: deque[Delta] = deque()
        self._lock = Lock()
        self._waiter: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None

    def put(self, delta: Delta) -> None:
        """The loop's thread has more of the text."""
        with self._lock:
            self._items.append(delta)
            self._wake()

    def end(self, ended: Completion | Exception) -> None:
        """The loop's thread has no more."""
        with self._lock:
            self.ended = ended
            self._wake()

    async def get(self) -> Delta:
        """Raises StopAsyncIteration behind the last delta, or what stopped the text."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                if isinstance(self.ended, Exception):
                    raise self.ended
                if self.ended is not None:
                    raise StopAsyncIteration
                if self._waiter is not None:
                    raise UsageError("another task waits for this stream already; one may read it")
                running = asyncio.get_running_loop()
                future = running.create_future()
                self._waiter = running, future
            try:
                await future
            finally:
                with self._lock:
                    self._waiter = None

    def cancel(self) -> None:
        if self.job is not None and self.ended is None:
            self._loop.cancel(self.job)

    def _wake(self) -> None:
        if self._waiter is not None:
            loop, future = self._waiter
            with suppress(RuntimeError):  # the reader's loop was closed, and nobody reads
                loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
