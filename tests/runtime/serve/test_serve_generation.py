"""How long a request may take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import perf_counter

import pytest

from runtime.completion import Completion
from runtime.serve.api import Piece
from runtime.serve.errors import ApiError
from runtime.serve.gate import Gate
from runtime.serve.generation import Generation, Timing


class Silent:
    """A text that never comes."""

    @property
    def completion(self) -> Completion:
        raise NotImplementedError

    async def __aiter__(self) -> AsyncIterator[Piece]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    def cancel(self) -> None:
        """Nothing to end."""


def test_the_limit_counts_from_the_requests_arrival() -> None:
    """What reading the prompt took came on top: a client with the same limit had long gone."""

    async def ask() -> None:
        place = Gate(max_batch=1, max_waiting=0).admit(1)
        timing = Timing(perf_counter() - 1000.0)
        late = Generation(
            [Silent()], place, timing, prompt_lens=[1], timeout_s=900, on_close=lambda _: None
        )
        async with asyncio.timeout(60):
            with pytest.raises(ApiError) as refusal:
                await late.finish()
        late.close()
        assert (refusal.value.status, refusal.value.code) == (504, "timeout")

    asyncio.run(ask())
