"""One streamed request of a client, and when its tokens came."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What every request of a run has in common."""

    model: str
    endpoint: str = "completions"
    max_tokens: int = 64
    temperature: float = 0.0
    ignores_eos: bool = False

    @property
    def path(self) -> str:
        return PATHS[self.endpoint]

    def body(self, prompt: str, *, stream: bool = True) -> dict[str, Any]:
        said: dict[str, Any] = {"prompt": prompt}
        if self.endpoint == "chat":
            said = {"messages": [{"role": "user", "content": prompt}]}
        body = {
            "model": self.model,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": 0,
            **said,
        }
        if self.ignores_eos:
            body["ignore_eos"] = True
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request. Seconds; ``started_s`` since the run began.

    latency_s   from sending it to the last event of its choice, as in vLLM's benchmark; of one
                that failed, to where it did
    ttft_s      to its first piece of text, if it had one; ``itls_s`` between two pieces
    num_prompt_tokens, num_cached, num_tokens
                by the server's usage: of the prompt, of those in its cache, of the answer
    error       None for an answer that came whole: to its finish reason, its usage and the end of
                the stream
    """

    started_s: float
    latency_s: float
    ttft_s: float | None = None
    itls_s: tuple[float, ...] = ()
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    num_cached: int = 0
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None

    @property
    def tpot_s(self) -> float | None:
        """Seconds a token after the first; None where there was but one."""
        if self.ttft_s is None or self.num_tokens < 2:
            return None
        return (self.latency_s - self.ttft_s) / (self.num_tokens - 1)


class Reading:
    """Events of a stream, put together as they come. ``piece_times``: when each piece of text came;
    ``last_time``: when the last event of a choice did."""

    def __init__(self) -> None:
        self.text = ""
        self.finish_reason: str | None = None
        self.usage: dict[str, Any] = {}
        self.error: str | None = None
        self.is_ended = False
        self.piece_times: list[float] = []
        self.last_time: float | None = None

    def take(self, line: str, now: float) -> None:
        """One line of the stream. Raises ValueError, KeyError, TypeError or AttributeError for what
        is no event of OpenAI's."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.is_ended = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = str(event["error"].get("message"))
            return
        self.usage = event.get("usage") or self.usage
        piece = ""
        for choice in event["choices"]:
            delta = choice.get("delta")
            piece += (choice["text"] if delta is None else delta.get("content")) or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            self.last_time = now
        if piece:
            self.text += piece
            self.piece_times.append(now)

    @property
    def what_is_missing(self) -> str | None:
        """Why this is no whole answer."""
        if self.error is not None:
            return self.error
        if not self.is_ended or self.finish_reason is None or not self.usage:
            return "the stream ended before its answer did"
        if self.finish_reason == "abort":
            return "the server ended the answer"
        return None


async def ask(
    client: httpx2.AsyncClient,
    about: Ask,
    prompt: str,
    *,
    origin: float,
    on_open: Callable[[], None] = lambda: None,
) -> Outcome:
    """Send one request and read its stream. ``origin``: when the run began, by the event loop's
    clock. ``on_open`` is called once, when the server has begun to answer, or never will. Never
    raises for what goes wrong with the request."""
    import httpx2

    clock = asyncio.get_running_loop().time
    reading, begun, is_open = Reading(), clock(), False
    error: str | None = None
    try:
        async with client.stream("POST", about.path, json=about.body(prompt)) as response:
            is_open = True
            on_open()
            if response.status_code != 200:
                error = f"HTTP {response.status_code}: {(await response.aread())[:200]!r}"
            else:
                async for line in lines_of(response.aiter_bytes()):
                    reading.take(line, clock())
    except (httpx2.HTTPError, ValueError, KeyError, TypeError, AttributeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
        if not is_open:
            on_open()
    error = error or reading.what_is_missing
    ended = clock() if error or reading.last_time is None else reading.last_time
    return outcome_of(reading, begun, ended, origin=origin, error=error)


def outcome_of(
    reading: Reading, begun: float, ended: float, *, origin: float, error: str | None
) -> Outcome:
    usage, times = reading.usage, reading.piece_times
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    return Outcome(
        started_s=begun - origin,
        latency_s=ended - begun,
        ttft_s=times[0] - begun if times else None,
        itls_s=tuple(later - earlier for earlier, later in pairwise(times)),
        num_prompt_tokens=usage.get("prompt_tokens", 0),
        num_cached=cached or 0,
        num_tokens=usage.get("completion_tokens", 0),
        text=reading.text,
        finish_reason=reading.finish_reason,
        error=error,
    )


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """Lines of a stream that comes in pieces of any length. Only a line feed ends one: JSON may
    hold what else Python and httpx2 take for the end of a line."""
    held = b""
    async for piece in pieces:
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            yield line.decode("utf-8").rstrip("\r")
