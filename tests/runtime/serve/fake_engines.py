"""A stand-in for runtime.async_llm.AsyncLLM whose tokens are characters and whose texts are known.

A prompt of token ids that spells a word of ``FakeEngines`` makes it misbehave; see ``deltas``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from engines.errors import BackendError, CapacityError, SsdError, UsageError
from runtime.completion import Completion
from runtime.placement import Placement
from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.params import SamplingParams
from tests.runtime.cli.fake_llm import SETTINGS, stats

ANSWER = "Hello, wörld"
MAX_LEN = 100
EOS = 3
"""The one special token."""


@dataclass(frozen=True)
class FakeDelta:
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None


class FakeModel:
    """Characters are tokens; one special token, ``<eos>``."""

    def __init__(self) -> None:
        self.mode = "ssd"
        self.note: str | None = None
        self.has_lost_draft = False
        self.limits = SimpleNamespace(max_len=MAX_LEN, max_batch=2)
        self.settings = replace(SETTINGS, placement=Placement("ssd", (0,), (1,)), max_batch=2)
        self.has_chat_template = True
        self.compiled: list[object] = []
        self.tokenizer = SimpleNamespace(
            special_ids=frozenset({EOS}),
            token_of=lambda token: "<eos>" if token == EOS else chr(token),
            bytes_of=lambda token: chr(token).encode(),
        )

    def encode(self, text: str) -> list[int]:
        if not text:
            raise UsageError("the prompt is empty; give some text")
        if len(text) > 10 * MAX_LEN:
            raise CapacityError(f"the prompt has {len(text)} characters, too many")
        return [ord(character) for character in text]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.encode("".join(f"<{each['role']}>{each['content']}" for each in messages))

    def compile(self, grammar: object) -> None:
        self.compiled.append(grammar)


@dataclass
class FakeEngines:
    """``asked`` has (prompt, law, options) of every text; ``gate`` holds texts back while it is
    clear, after their first piece."""

    llm: FakeModel = field(default_factory=FakeModel)
    answer: str = ANSWER
    error: SsdError | None = None
    asked: list[tuple[str, SamplingParams, dict[str, Any]]] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    is_closed: bool = False
    num_running: int = 0
    num_waiting: int = 0

    def __post_init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()

    def deltas(self, prompt: Sequence[int], params: SamplingParams, **options: Any) -> FakeDeltas:
        """A prompt that has "refused" in it is, "broken" ends in an engine's error after a piece,
        "bug" in an error that nobody foresaw, "ungrammatical" where no token goes on."""
        if not all(token < 0x110000 for token in prompt):
            raise UsageError("the prompt has a token id beyond the vocabulary")
        text = "".join(map(chr, prompt))
        if "refused" in text:
            raise UsageError("the prompt was refused, as it asks to be")
        self.asked.append((text, params, options))
        return FakeDeltas(self, text, len(prompt), options)

    async def close(self, drain_s: float | None = None) -> None:  # noqa: ARG002
        self.is_closed = True


class FakeDeltas:
    def __init__(
        self, engines: FakeEngines, prompt: str, num_prompt: int, options: Mapping[str, Any]
    ) -> None:
        self._engines = engines
        self._prompt = prompt
        self._num_prompt = num_prompt
        self._options = options
        self._shown: list[str] = []
        self._reason: str | None = None
        self._is_cancelled = asyncio.Event()

    def cancel(self) -> None:
        if self._reason is None and not self._is_cancelled.is_set():
            self._is_cancelled.set()
            self._engines.cancelled.append(self._prompt)

    async def __aiter__(self) -> AsyncIterator[FakeDelta]:
        engines, options = self._engines, self._options
        engines.num_running += 1
        try:
            text = engines.answer
            stops = [text.find(stop) for stop in options["stop"] if stop in text]
            text = text[: min([*stops, options["max_tokens"]])]
            for place, character in enumerate(text):
                if place == 1:
                    await self._between()
                if self._is_cancelled.is_set():
                    self._reason = "cancelled"
                    return
                self._shown.append(character)
                yield FakeDelta(character, (ord(character),), self._logprobs(1))
                await asyncio.sleep(0)
            is_whole = text == engines.answer or stops
            self._reason = "stop" if is_whole else "length"
            if "ungrammatical" in self._prompt:
                self._reason = "grammar"
        finally:
            engines.num_running -= 1

    async def _between(self) -> None:
        if "broken" in self._prompt:
            raise BackendError("the engine failed on purpose")
        if "bug" in self._prompt:
            raise ZeroDivisionError("a bug with secrets in it")
        waiting = {
            asyncio.create_task(self._engines.gate.wait()),
            asyncio.create_task(self._is_cancelled.wait()),
        }
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()

    def _logprobs(self, num: int) -> tuple[TokenLogprobs, ...] | None:
        num_top = self._options["logprobs"]
        if num_top is None:
            return None
        ids = np.array([EOS, 228, *range(97, 120)][:num_top], np.int32)
        values = np.array([-0.5, -np.inf, *[-3.0] * 23][:num_top], np.float32)
        return (TokenLogprobs(-1.5, ids, values, 2),) * num

    @property
    def completion(self) -> Completion:
        assert self._reason is not None
        num = len(self._shown)
        return Completion(
            text="".join(self._shown),
            token_ids=tuple(map(ord, self._shown)),
            finish_reason=self._reason,
            mode="ssd",
            note=None,
            prompt_tokens=self._num_prompt,
            stats=stats(
                num_tokens=num,
                num_rounds=4,
                num_emitted=num,
                num_hits=3,
                num_drafted=8,
                num_accepted=5,
                decode_s=0.5,
                num_hits_after_hit=2,
                num_rounds_after_hit=2,
                num_cached=1,
            ),
            logprobs=self._logprobs(num),
        )
