"""Answers that are sent while they come (server-sent events), and those that are sent whole."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from engines.errors import SsdError
from runtime.completion import Completion
from runtime.serve.errors import ApiError, as_api_error, draining
from runtime.serve.generation import Generation
from runtime.serve.http.edge import line_of
from runtime.serve.service import Service
from runtime.serve.shapes import Envelope, Record, Shape, spec_metrics, usage

T = TypeVar("T")
log = logging.getLogger("runtime.serve")
DONE = b"data: [DONE]\n\n"


class EventStream(StreamingResponse):
    """Sends a generation's events; a client that goes away ends the generation at once."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], generation: Generation) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()
            note(scope, self._generation)


async def streamed(
    generation: Generation,
    envelope: Envelope,
    shape: Shape,
    service: Service,
    *,
    includes_usage: bool,
) -> AsyncIterator[bytes]:
    """The chunks of an answer. An error after the first one can only be one more event."""
    more: Record = {"usage": None} if includes_usage else {}
    try:
        for index in range(len(generation.completions)):
            opening = shape.opening(index)
            if opening is not None:
                yield event(envelope.around([opening], **more))
        async for index, item in generation.events():
            if isinstance(item, Completion):
                yield event(envelope.around([shape.ending(index, item)], **more))
            elif item.text or item.logprobs:  # some tokens have no text of their own
                yield event(envelope.around([shape.piece(index, item)], **more))
        if includes_usage:
            yield event(envelope.around([], **totals(generation, service)))
    except Exception as error:
        if not isinstance(error, SsdError | ApiError):
            log.error("a stream met an error that nobody expected", exc_info=error)
        yield event(as_api_error(error).as_record())
    yield DONE


async def whole(
    request: Request,
    generation: Generation,
    envelope: Envelope,
    shape: Shape,
    service: Service,
) -> Response:
    """A complete answer, unless the client goes away first."""
    try:
        completions = await unless_gone(request, generation.finish())
        if completions is None:
            return Response(status_code=499)  # nobody is there to get it
        if any(each.finish_reason == "cancelled" for each in completions):
            raise draining()  # a part of an answer is none
        choices = [shape.whole(index, each) for index, each in enumerate(completions)]
        record = envelope.around(choices, **totals(generation, service))
        return Response(as_json(record), media_type="application/json")
    finally:
        generation.close()
        note(request.scope, generation)


def totals(generation: Generation, service: Service) -> Record:
    completions = generation.completions
    record: Record = {"usage": usage(generation)}
    if service.config.spec_metrics:
        record["metrics"] = spec_metrics([each.stats for each in completions if each is not None])
    return record


async def unless_gone(request: Request, work: Awaitable[T]) -> T | None:
    """What ``work`` gives; None, and ``work`` cancelled, where the client left first."""
    working = asyncio.ensure_future(work)
    watching = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return await working if working.done() else None
    finally:
        watching.cancel()
        working.cancel()


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def note(scope: Scope, generation: Generation) -> None:
    """What the log says of a generation that has ended."""
    done = [each for each in generation.completions if each is not None]
    line, timing = line_of(scope), generation.timing
    num_tokens = sum(len(each.token_ids) for each in done)
    decode_s = sum(each.stats.decode_s for each in done)
    num_rounds = sum(each.stats.num_rounds for each in done)
    line.is_cut |= len(done) < len(generation.completions) and generation.error is None
    line.more |= {
        "prompt_tokens": generation.num_prompt_tokens,
        "completion_tokens": num_tokens,
        "ttft_s": timing.first_s,
        "tokens_per_second": num_tokens / decode_s if decode_s else None,
        "acceptance_length": sum(each.stats.num_emitted for each in done) / num_rounds
        if num_rounds
        else None,
        "finish_reasons": [each.finish_reason for each in done],
    }
    if generation.error is not None:
        line.more["error"] = str(generation.error)


def event(record: Record) -> bytes:
    return b"data: " + as_json(record) + b"\n\n"


def as_json(record: Any) -> bytes:
    """ASCII, and so also what no encoding can carry as it is; -inf as JSON's largest negative."""
    try:
        return json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(record), separators=(",", ":"), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """A probability of 0 has the logarithm -inf, which JSON lacks; OpenAI writes -9999."""
    match value:
        case float():
            return value if abs(value) < float("inf") else -9999.0
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list():
            return [_finite(each) for each in value]
    return value
