"""Clients that misbehave, beside clients that must not notice; a server told to stop.

Every fault happens while streams of known answers run. Afterwards each of those has to be whole and
equal to what the same prompt gave when nothing was wrong.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from runtime.bench.serving.client import Ask, Outcome, Reading, ask, lines_of

if TYPE_CHECKING:
    import httpx2

NUM_DROPPED = 3
HUGE_BYTES = 10 << 20
QUIET_S = 10.0
"""How long a server may take to notice that a client has gone."""
MALFORMED: tuple[tuple[str, bytes], ...] = (
    ("cut off", b'{"prompt": "a", '),
    ("not UTF-8", b'{"prompt": "\xff\xfe"}'),
    ("deep", b"[" * 100_000),
    ("a list", b"[1, 2]"),
    ("NaN", b'{"prompt": "a", "temperature": NaN}'),
    ("half a character", b'{"prompt": "\\ud800"}'),
    ("a huge number", b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}"),
    ("a wrong type", b'{"prompt": {"a": 1}}'),
    ("an unknown parameter", b'{"prompt": "a", "no_such_parameter": 1}'),
)
JSON_TYPE = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind, and how it ended. ``reasons``: what went wrong; none: nothing was lost."""

    name: str
    num_streams: int
    seconds: float
    reasons: tuple[str, ...]

    @property
    def is_harmless(self) -> bool:
        return not self.reasons

    def also(self, reasons: Sequence[str]) -> Fault:
        """The same, where these went wrong, too."""
        return replace(self, reasons=(*self.reasons, *reasons))


@dataclass(frozen=True, slots=True)
class Bystanders:
    """Streams with known answers. ``expected``: by prompt, its text."""

    client: httpx2.AsyncClient
    about: Ask
    expected: dict[str, str]

    async def during(self, misbehave: Callable[[], Awaitable[list[str]]], name: str) -> Fault:
        """Run all streams and, once each has begun, the fault."""
        begun, opened = perf_counter(), asyncio.Semaphore(0)
        streams = [
            asyncio.create_task(self._stream(prompt, opened.release)) for prompt in self.expected
        ]
        for _ in streams:
            await opened.acquire()
        import httpx2

        try:
            reasons = await misbehave()
        except (httpx2.HTTPError, OSError) as error:
            reasons = [f"the server did not answer it: {type(error).__name__}: {error}"]
        outcomes = await asyncio.gather(*streams)
        for prompt, outcome in zip(self.expected, outcomes, strict=True):
            reasons += differences(outcome, self.expected[prompt])
        return Fault(name, len(outcomes), perf_counter() - begun, tuple(reasons))

    async def _stream(self, prompt: str, on_open: Callable[[], None]) -> Outcome:
        return await ask(self.client, self.about, prompt, origin=0.0, on_open=on_open)


def differences(outcome: Outcome, expected: str) -> list[str]:
    """What is wrong with the answer of a client that did nothing wrong."""
    if outcome.error is not None:
        return [f"a bystander's answer failed: {outcome.error}"]
    if outcome.text != expected:
        return [f"a bystander got {outcome.text[:60]!r}, expected {expected[:60]!r}"]
    return []


async def known_answers(
    client: httpx2.AsyncClient, about: Ask, prompts: Sequence[str]
) -> Bystanders:
    """What each prompt gives alone. Raises ValueError where one fails even so."""
    expected = {}
    for prompt in dict.fromkeys(prompts):
        outcome = await ask(client, about, prompt, origin=0.0)
        if outcome.error is not None:
            raise ValueError(outcome.error)
        expected[prompt] = outcome.text
    return Bystanders(client, about, expected)


async def drops(others: Bystanders) -> list[str]:
    """Clients that leave in the middle of their stream, and one before its answer."""
    client, about = others.client, others.about
    prompt = next(iter(others.expected))
    for _ in range(NUM_DROPPED):
        async with client.stream("POST", about.path, json=about.body(prompt)) as response:
            async for _line in lines_of(response.aiter_bytes()):
                break
    import httpx2

    with suppress(httpx2.TimeoutException):
        await client.post(about.path, json=about.body(prompt, stream=False), timeout=0.05)
    return []


async def is_left_alone(client: httpx2.AsyncClient) -> list[str]:
    """Whether the server works for nobody any more. One that does not tell is not asked."""
    import httpx2

    stats: dict[str, Any] = {}
    until = perf_counter() + QUIET_S
    while perf_counter() < until:
        try:
            response = await client.get("/stats")
        except httpx2.HTTPError as error:
            return [f"the server does not answer any more: {type(error).__name__}: {error}"]
        if response.status_code != 200:
            return []
        stats = response.json()
        if stats["running"] == stats["waiting"] == 0:
            return []
        await asyncio.sleep(0.05)
    counts = f"{stats['running']} answers still run and {stats['waiting']} wait"
    return [f"{counts} {QUIET_S:g} s after their clients left"]


async def malformed(others: Bystanders) -> list[str]:
    """Bodies that are no request: each must be refused with JSON that says why."""
    reasons = []
    for what, body in MALFORMED:
        response = await others.client.post("/v1/completions", content=body, headers=JSON_TYPE)
        reasons += refusal_of(response, f"a body that is {what}")
    return reasons


async def huge(others: Bystanders) -> list[str]:
    """A prompt of 10 MiB, with its length said and without."""
    import httpx2

    body = json.dumps(others.about.body("word " * (HUGE_BYTES // 5), stream=False)).encode()

    async def in_parts() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    reasons = []
    for what, content in (("10 MiB", body), ("10 MiB in parts", in_parts())):
        try:
            response = await others.client.post(
                others.about.path, content=content, headers=JSON_TYPE
            )
        except httpx2.HTTPError:  # refused before it was all sent, and so maybe cut off
            continue
        reasons += refusal_of(response, what)
    return reasons


def refusal_of(response: httpx2.Response, what: str) -> list[str]:
    """What is wrong with a refusal: it must be a client's error, as JSON."""
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = None
    if 400 <= response.status_code < 500 and message:
        return []
    return [f"{what} got HTTP {response.status_code} and {response.text[:80]!r}"]


async def slow_reader(others: Bystanders) -> list[str]:
    """A client with a small window that takes its stream a few bytes at a time: its own answer is
    late, not lost."""
    prompt, expected = next(iter(others.expected.items()))
    reading, clock = Reading(), asyncio.get_running_loop().time
    async for line in lines_of(_sip(others, others.about.body(prompt))):
        reading.take(line, clock())
    if reading.what_is_missing is not None:
        return [f"the slow reader's answer: {reading.what_is_missing}"]
    if reading.text != expected:
        return [f"the slow reader got {reading.text[:60]!r}, expected {expected[:60]!r}"]
    return []


async def _sip(others: Bystanders, body: dict[str, Any]) -> AsyncIterator[bytes]:
    """HTTP by hand: a client library would read ahead. Chunk sizes stand on lines of their own, so
    they are lines that no reader of events looks at."""
    url = urlsplit(str(others.client.base_url))
    data = json.dumps(body).encode()
    head = (
        f"POST {others.about.path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
    )
    key = others.client.headers.get("Authorization")
    if key is not None:
        head += f"Authorization: {key}\r\n"
    family, kind, protocol, _, address = (
        await asyncio.get_running_loop().getaddrinfo(
            url.hostname, url.port or 80, type=socket.SOCK_STREAM
        )
    )[0]
    raw = socket.socket(family, kind, protocol)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, address)
    reader, writer = await asyncio.open_connection(sock=raw, limit=1024)
    try:
        writer.write(head.encode() + b"\r\n" + data)
        while piece := await reader.read(256):
            yield piece
            await asyncio.sleep(0.005)
    finally:
        writer.close()


async def terminated(others: Bystanders, terminate: Callable[[], None]) -> list[str]:
    """The server is told to stop while streams run; whoever comes then is sent away."""
    import httpx2

    client, about = others.client, others.about
    terminate()
    try:
        until = perf_counter() + QUIET_S
        while perf_counter() < until and (await client.get("/health")).status_code == 200:
            await asyncio.sleep(0.02)
        body = about.body(next(iter(others.expected)), stream=False)
        response = await client.post(about.path, json=body)
    except httpx2.TransportError:  # it has closed its door already
        return []
    if response.status_code == 503 and "error" in response.json():
        return []
    return [f"a request after SIGTERM got HTTP {response.status_code}"]
