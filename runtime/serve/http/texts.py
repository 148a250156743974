"""``/v1/completions`` and ``/v1/chat/completions``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import Response

from engines.errors import UsageError
from runtime.serve.asked import COMPLETION_TOKENS, read_request
from runtime.serve.errors import ApiError
from runtime.serve.generation import Generation
from runtime.serve.http import responses
from runtime.serve.http.requests import KNOWN_EXAMPLES, ChatRequest, CompletionRequest
from runtime.serve.http.streaming import EventStream, streamed, whole
from runtime.serve.service import Service, encoder
from runtime.serve.shapes import ChatShape, Envelope, Shape, Speller, TextShape

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": responses.Error, "description": description}
    for status, description in {
        400: "A parameter is wrong, unknown, not served, or does not fit the model",
        401: "The API key is missing or wrong",
        404: "There is no such model",
        408: "The body did not come in time",
        413: "The body is too long",
        429: "The queue is full; Retry-After says when to try again",
        500: "The engines failed on this request",
        503: "The server is shutting down",
        504: "The answer took longer than this server's limit",
    }.items()
}


def _events_too(model: type) -> dict[int | str, dict[str, Any]]:
    """A success is JSON, or with ``stream`` a stream of events."""
    content = {"text/event-stream": {"schema": {"type": "string"}}}
    return {200: {"model": model, "content": content}, **ERRORS}


def _example(name: str) -> Any:
    return Body(openapi_examples={name: {"value": KNOWN_EXAMPLES[name]}})


def router_of(service: Service) -> APIRouter:
    """The two routes, on one service."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    async def complete(
        request: Request, body: Annotated[CompletionRequest, _example("completion")]
    ) -> Response:
        """Continue a text."""
        service.check(body.model)
        asked = read_request(body, logprobs=body.logprobs, usual_tokens=COMPLETION_TOKENS)
        num_prompts, encode = encoder(service.model, body.prompt)
        generation = await service.generate(asked, num_prompts, encode)
        envelope = Envelope.new("cmpl", "text_completion", service.config.model_name)
        shape = TextShape(Speller(service.model.tokenizer))
        return await _answered(request, body, generation, envelope, shape)

    async def chat(request: Request, body: Annotated[ChatRequest, _example("chat")]) -> Response:
        """Answer a conversation."""
        service.check(body.model)
        if not service.model.has_chat_template:
            raise ApiError(
                400, "this model has no chat template; use /v1/completions", param="messages"
            )
        asked = read_request(body, logprobs=_num_top(body), usual_tokens=None)
        messages = [message.as_said() for message in body.messages]
        generation = await service.generate(asked, 1, lambda: [service.model.encode_chat(messages)])
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        envelope = Envelope.new("chatcmpl", kind, service.config.model_name)
        shape = ChatShape(Speller(service.model.tokenizer))
        return await _answered(request, body, generation, envelope, shape)

    async def _answered(
        request: Request,
        body: CompletionRequest | ChatRequest,
        generation: Generation,
        envelope: Envelope,
        shape: Shape,
    ) -> Response:
        if not body.stream:
            return await whole(request, generation, envelope, shape, service)
        options = body.stream_options
        includes_usage = options is not None and bool(options.include_usage)
        events = streamed(generation, envelope, shape, service, includes_usage=includes_usage)
        return EventStream(events, generation)

    router.add_api_route(
        "/completions",
        complete,
        methods=["POST"],
        response_class=Response,
        responses=_events_too(responses.Completion),
    )
    router.add_api_route(
        "/chat/completions",
        chat,
        methods=["POST"],
        response_class=Response,
        responses=_events_too(responses.ChatCompletion),
    )
    return router


def _num_top(body: ChatRequest) -> int | None:
    if body.top_logprobs and not body.logprobs:
        raise UsageError("top_logprobs goes with logprobs: true; set it, or drop top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
