"""From the parts of a request to what the engines are asked: laws, options, prompts that fit."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runtime.request import GenerateOptions
from runtime.sampling.params import NUM_SEEDS, SamplingParams, choice_params
from runtime.serve.errors import CONTEXT, ApiError

if TYPE_CHECKING:
    from runtime.grammar import Grammar
    from runtime.serve.http.requests import ChatRequest, CompletionRequest, ResponseFormat

COMPLETION_TOKENS = 16
"""``max_tokens`` of a completion that does not say, by OpenAI's definition. A chat's answer may
fill the context."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, for every prompt alike. ``max_tokens`` None: what the context leaves."""

    laws: tuple[SamplingParams, ...]
    options: GenerateOptions
    max_tokens: int | None
    grammar: Grammar | None = None

    def for_prompt(self, prompt: Sequence[int], max_len: int) -> GenerateOptions:
        """The options, for a prompt of these ids. Raises ApiError where the two do not fit."""
        room = max_len - len(prompt)
        if room < 1:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens; this model's context holds {max_len}, "
                "prompt and answer together: shorten the prompt",
                code=CONTEXT,
                param="prompt",
            )
        most = room if self.max_tokens is None else self.max_tokens
        if most > room:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens and max_tokens is {most}; this model's "
                f"context holds {max_len} together: ask for at most {room}",
                code=CONTEXT,
                param="max_tokens",
            )
        return {**self.options, "max_tokens": most}


def read_request(
    request: CompletionRequest | ChatRequest, *, logprobs: int | None, usual_tokens: int | None
) -> Asked:
    """``logprobs``: of how many of the likeliest tokens; ``usual_tokens``: the longest answer to a
    request that does not say. Raises ApiError and UsageError."""
    if request.stream_options is not None and not request.stream:
        raise ApiError(
            400, "stream_options goes with stream: true; drop it", param="stream_options"
        )
    max_tokens = _max_tokens(request) or usual_tokens
    options: GenerateOptions = {
        "min_tokens": request.min_tokens or 0,
        "stop": request.stop or (),
        "stop_token_ids": request.stop_token_ids or (),
        "logprobs": logprobs,
        "ignore_eos": bool(request.ignore_eos),
        "bad_words": request.bad_words or (),
        "cache_salt": request.cache_salt,
    }
    grammar = read_grammar(request)
    if grammar is not None:
        options["grammar"] = grammar
    laws = choice_params(_law(request), request.n or 1)
    return Asked(tuple(laws), options, max_tokens, grammar)


def _max_tokens(request: CompletionRequest | ChatRequest) -> int | None:
    """A chat's limit has two names."""
    newer: int | None = getattr(request, "max_completion_tokens", None)
    older = request.max_tokens
    if newer is not None and older is not None and newer != older:
        raise ApiError(
            400,
            f"max_completion_tokens is {newer} and max_tokens {older}, which mean the same; give "
            "one",
            param="max_completion_tokens",
        )
    return newer if newer is not None else older


def _law(request: CompletionRequest | ChatRequest) -> SamplingParams:
    """OpenAI's defaults: the model's own law, and another seed each time."""
    seed = secrets.randbits(63) if request.seed is None else request.seed % NUM_SEEDS
    return SamplingParams(
        temperature=_or(request.temperature, 1.0),
        top_k=max(0, request.top_k or 0),
        top_p=_or(request.top_p, 1.0),
        min_p=_or(request.min_p, 0.0),
        seed=seed,
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def read_grammar(request: CompletionRequest | ChatRequest) -> Grammar | None:
    """What the text has to be, said in one of three ways. Raises ApiError for two at once, and
    UsageError for a grammar that cannot be followed."""
    asked: dict[str, Grammar] = {}
    wanted = request.response_format
    if wanted is not None and wanted.type != "text":
        asked["response_format"] = _of_format(wanted)
    kinds = ("json", "regex", "choice", "grammar")
    for kind in kinds:
        value = getattr(request, f"guided_{kind}")
        if value is not None:
            asked[f"guided_{kind}"] = _grammar(kind, value)
    outputs = request.structured_outputs
    if outputs is not None:
        for kind in kinds:
            value = outputs.json_ if kind == "json" else getattr(outputs, kind)
            if value is not None:
                asked[f"structured_outputs.{kind}"] = _grammar(kind, value)
        if outputs.json_object:
            asked["structured_outputs.json_object"] = _grammar("json_object", None)
    if len(asked) > 1:
        first, second, *_ = asked
        raise ApiError(400, f"{first} and {second} both say what the text is; give one")
    return next(iter(asked.values()), None)


def _of_format(wanted: ResponseFormat) -> Grammar:
    if wanted.type == "json_object":
        return _grammar("json_object", None)
    if wanted.json_schema is None:
        raise ApiError(
            400,
            "response_format is json_schema without its json_schema; give one",
            param="response_format.json_schema",
        )
    return _grammar("json", wanted.json_schema.schema_)


def _grammar(kind: str, value: object) -> Grammar:
    from runtime.grammar import Grammar

    match kind, value:
        case "json", dict() | str():
            return Grammar.json_schema(value)
        case "regex", str():
            return Grammar.regex(value)
        case "choice", list():
            return Grammar.choice(value)
        case "grammar", str():
            return Grammar.lark(value)
    return Grammar.json_object()
