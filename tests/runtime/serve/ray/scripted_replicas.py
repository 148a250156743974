"""A fleet's server over replicas that do what a script says. Without Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx2

from engines.errors import BackendError, UsageError
from runtime.completion import Completion, Delta
from runtime.serve.config import ServeConfig
from runtime.serve.http.app import create_app
from runtime.serve.ray.fleet import Fleet, FleetService, Question
from runtime.serve.ray.messages import Begun, Counts, Ended, Failed, FleetRounds, Message
from runtime.serve.rounds import RoundLog
from tests.runtime.cli.fake_llm import stats
from tests.runtime.serve.fake_engines import FakeModel

TEXT = "abcd"


class ReplicaGoneError(Exception):
    """What Ray would raise."""


@dataclass
class Script:
    """What one attempt does: so many pieces, and an end: done, gone, stops, ill, wrong, hangs.
    One that is not ``taken`` ends before a replica has it."""

    num_pieces: int
    end: str = "done"
    is_taken: bool = True


class FakeResponse:
    def __init__(self, replica: str, script: Script) -> None:
        self.replica = replica
        self.script = script
        self.is_cancelled = asyncio.Event()

    def cancel(self) -> None:
        self.is_cancelled.set()

    async def __aiter__(self) -> AsyncIterator[Message]:
        if self.script.is_taken:
            yield Begun(self.replica)
        for letter in TEXT[: self.script.num_pieces]:
            await asyncio.sleep(0)
            yield Delta(letter, (ord(letter),), None)
        match self.script.end:
            case "gone":
                raise ReplicaGoneError
            case "ill":
                yield Failed.by(BackendError("the target failed"))
            case "wrong":
                yield Failed.by(UsageError("max-tokens is 0"))
            case "stops":
                return
            case "hangs":
                await self.is_cancelled.wait()
                raise RuntimeError("cancelled")
            case _:
                counts = Counts.of(RoundLog(num_draft=0))
                yield Ended(completion(), counts, has_lost_draft=False, note="sd is fastest now")


def completion() -> Completion:
    return Completion(
        text=TEXT,
        token_ids=tuple(map(ord, TEXT)),
        finish_reason="stop",
        mode="ssd",
        note=None,
        prompt_tokens=2,
        stats=stats(num_tokens=4),
    )


@dataclass
class Replicas:
    """``scripts`` are used up, attempt by attempt; further ones are done."""

    scripts: list[Script]
    asked: list[tuple[Question, tuple[str, ...]]] = field(default_factory=list)
    responses: list[FakeResponse] = field(default_factory=list)

    def __call__(self, question: Question, *, avoid: Sequence[str]) -> FakeResponse:
        script = self.scripts.pop(0) if self.scripts else Script(4)
        self.asked.append((question, tuple(avoid)))
        self.responses.append(FakeResponse(f"r{len(self.asked)}", script))
        return self.responses[-1]


class Land:
    """A fleet's server, over scripted replicas."""

    def __init__(self, *scripts: Script, **config: Any) -> None:
        model: Any = FakeModel()
        model.intake = SimpleNamespace(answer=self._check)
        self.replicas = Replicas(list(scripts))
        self.fleet = Fleet(
            model,
            FleetRounds(),
            self.replicas,
            is_loss=lambda error: isinstance(error, ReplicaGoneError),
        )
        config = {"model_name": "fake", "has_page": False, **config}
        self.service = FleetService(self.fleet, ServeConfig(**config), num_replicas=3)
        self.app = create_app(self.service, log=lambda _line: None)

    def _check(self, prompt: Sequence[int], *_: object) -> None:
        if "refused" in "".join(map(chr, prompt)):
            raise UsageError("the prompt was refused")

    def client(self) -> httpx2.AsyncClient:
        transport = httpx2.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx2.AsyncClient(transport=transport, base_url="http://server")

    def post(self, path: str, body: dict[str, Any]) -> httpx2.Response:
        async def ask() -> httpx2.Response:
            async with self.client() as client:
                return await client.post(path, json=body)

        found = asyncio.run(ask())
        assert self.service.gate.num_inside == 0
        assert not self.fleet.open
        return found
