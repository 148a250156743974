"""Answers lines of a batch in this process: the server's own application, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from runtime.serve.batch.files import Answered, Asked, refused
from runtime.serve.config import ServeConfig
from runtime.serve.rounds import RoundLog
from runtime.serve.service import Service

if TYPE_CHECKING:
    from runtime.async_llm import AsyncLLM

ANY_NUMBER = 1 << 30
AHEAD = 2
"""Lines asked at once, by the texts that are decoded at once: others wait, so that no place is
empty between two."""


class Answering:
    """Open engines and an application over them. On one event loop."""

    def __init__(self, engines: AsyncLLM, *, model_name: str) -> None:
        import httpx2

        from runtime.serve.http.app import create_app

        config = ServeConfig(
            model_name=model_name,
            max_waiting=ANY_NUMBER,
            max_choices=ANY_NUMBER,
            max_body_bytes=ANY_NUMBER,
            request_timeout_s=None,
            has_page=False,
        )
        service = Service(engines, RoundLog(num_draft=0), config)
        app = create_app(service, log=lambda _line: None)
        self.num_at_once = AHEAD * service.gate.max_batch
        self._client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app, raise_app_exceptions=False),
            base_url="http://batch",
            timeout=None,
        )

    async def answer(self, asked: Asked) -> Answered:
        """One line. Never raises for what is wrong with it."""
        if asked.fault is not None:
            return refused(asked)
        response = await self._client.post(asked.url, json=asked.body)
        request_id = response.headers.get("x-request-id", "")
        return Answered(asked.custom_id, response.status_code, request_id, response.json())

    async def answers(self, lines: Sequence[Asked]) -> AsyncGenerator[Answered, None]:
        """All lines, each as soon as it is answered. Closed early, it ends what runs."""
        places = asyncio.Semaphore(self.num_at_once)

        async def one(asked: Asked) -> Answered:
            async with places:
                return await self.answer(asked)

        tasks = [asyncio.create_task(one(asked)) for asked in lines]
        try:
            for task in asyncio.as_completed(tasks):
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
