"""What every request passes first: its id, the key, the size of its body; and a line in the log.

Plain ASGI: a response that streams must reach the socket as it comes, and a client that goes away
must be seen by whoever waits for it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runtime.serve.config import ServeConfig
from runtime.serve.errors import ApiError, as_api_error
from runtime.serve.http.errors import Refused, answer
from runtime.serve.http.page import FILES

log = logging.getLogger("runtime.serve")
API = "/v1/"
"""What clients ask for; all else is for whoever runs the server."""
OPEN = frozenset({"/health", *FILES})
"""Whose answers tell nothing of anybody's texts, and whose readers have no key: what keeps the
server running, and a page that asks for the key itself."""
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


@dataclass
class Line:
    """What the log says of one request. The routes add what they know of its texts."""

    request_id: str
    client: str
    method: str
    path: str
    status: int = 0
    seconds: float = 0.0
    is_cut: bool = False
    more: dict[str, Any] = field(default_factory=dict)


def line_of(scope: Scope) -> Line:
    """Of the request that is being answered."""
    line: Line = scope["ssd.line"]
    return line


class Edge:
    """An ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, *, config: ServeConfig, log: Callable[[Line], None]) -> None:
        self._app = app
        self._config = config
        self._log = log
        self._key = None if config.api_key is None else config.api_key.encode()
        self._open = OPEN if config.protects_metrics else OPEN | {"/metrics"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        line = scope["ssd.line"] = Line(
            request_id=_request_id(headers),
            client=scope["client"][0] if scope.get("client") else "-",
            method=scope["method"],
            path=scope["path"],
        )
        started_at = perf_counter()

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                line.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = line.request_id
            await send(message)

        body = _Body(receive, self._config)
        try:
            refusal = self._refusal(scope["path"], headers)
            if refusal is not None:
                await answer(refusal)(scope, receive, marked)
                return
            await self._app(scope, body.receive, marked)
        except asyncio.CancelledError:
            line.is_cut = True
            raise
        except Exception as error:
            log.error("a request met an error that nobody expected", exc_info=error)
            if line.status:  # its answer is under way and can only be cut off
                raise
            await answer(as_api_error(error))(scope, receive, marked)
        finally:
            line.seconds = perf_counter() - started_at
            line.is_cut |= body.is_disconnected and line.status == 0
            self._log(line)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        if self._key is not None and path not in self._open and not self._has_key(headers):
            return ApiError(
                401,
                "this server asks for an API key: send it as Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._config.max_body_bytes:
            return too_long(self._config)
        return None

    def _has_key(self, headers: Headers) -> bool:
        """Compared in constant time: how long a wrong key takes must not tell where it is wrong."""
        assert self._key is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_equal = hmac.compare_digest(given.strip().encode("latin-1"), self._key)
        return is_equal and scheme.lower() == "bearer"


class _Body:
    """A body on its way in, counted and timed."""

    def __init__(self, receive: Receive, config: ServeConfig) -> None:
        self._receive = receive
        self._config = config
        self._num_bytes = 0
        self._until: float | None = None  # all of it, however small its parts
        self._is_complete = False
        self.is_disconnected = False

    async def receive(self) -> Message:
        if self._is_complete:
            message = await self._receive()
        else:
            message = await self._next_part()
        self.is_disconnected |= message["type"] == "http.disconnect"
        return message

    async def _next_part(self) -> Message:
        limit_s = self._config.body_timeout_s
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + limit_s
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            reason = f"the body had not come after {limit_s:g} s, this server's limit"
            raise Refused(ApiError(408, reason, code="body_timeout")) from None
        self._num_bytes += len(message.get("body", b""))
        self._is_complete = not message.get("more_body", False)
        if self._num_bytes > self._config.max_body_bytes:
            raise Refused(too_long(self._config))
        return message


def too_long(config: ServeConfig) -> ApiError:
    return ApiError(
        413,
        f"the body is longer than {config.max_body_bytes} bytes, this server's limit",
        code="body_too_long",
    )


def _request_id(headers: Headers) -> str:
    """The client's own, where it is fit to be printed; else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(8)}"
