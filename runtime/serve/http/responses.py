"""Bodies of answers, for the OpenAPI document; ``runtime.serve.shapes`` writes them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Ending = Literal["stop", "length", "abort"]


class PromptDetails(BaseModel):
    cached_tokens: int = Field(description="of the prompts, found in the cache")


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TextLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class TextChoice(BaseModel):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Ending
    stop_reason: str | int | None = Field(
        description="the stop string or token that ended the text; null: another ending"
    )


class _Answer(BaseModel):
    id: str
    created: int = Field(description="seconds since 1970")
    model: str
    usage: Usage
    metrics: dict[str, Any] | None = Field(
        default=None, description="how the drafts fared, where the server tells it"
    )


class Completion(_Answer):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Ending
    stop_reason: str | int | None


class ChatCompletion(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class Error(BaseModel):
    error: ErrorBody


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "ssd-trt"
    max_model_len: int = Field(description="tokens of prompt and answer together")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    """``ready`` comes with 200; ``draining`` and ``failed`` with 503."""

    status: Literal["ready", "draining", "failed"]
    mode: str = Field(description="how the last round was decoded")
    note: str | None = Field(description="what is not as it was asked for, and why")
    running: int
    waiting: int


class Version(BaseModel):
    version: str
