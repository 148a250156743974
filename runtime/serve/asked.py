"""From the parts of a request to what the engines are asked: laws, options, prompts that fit."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runtime.request import GenerateOptions
from runtime.sampling.params import NUM_SEEDS, SamplingParams, choice_params
from runtime.serve.errors import CONTEXT, ApiError, blamed

if TYPE_CHECKING:
    from runtime.grammar import Grammar
    from runtime.serve.http.requests import ChatRequest, CompletionRequest

COMPLETION_TOKENS = 16
"""``max_tokens`` of a completion that does not say, by OpenAI's definition. A chat's answer may
fill the context."""
LONGEST_GRAMMAR = 1 << 16
"""Characters. A schema of that length can take seconds to compile, and longer ones take minutes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, for every prompt alike. ``max_tokens`` None: what the context leaves.

    ``prompt_name``, ``limit_name``, ``grammar_name``: the parameters that say the prompt, the
    length and the form, to be blamed for them. ``body``: what it was read from.
    """

    laws: tuple[SamplingParams, ...]
    options: GenerateOptions
    max_tokens: int | None
    grammar: Grammar | None
    prompt_name: str
    limit_name: str
    grammar_name: str | None
    body: CompletionRequest | ChatRequest | None = None

    def for_prompt(self, prompt: Sequence[int], max_len: int) -> GenerateOptions:
        """The options, for a prompt of these ids. Raises ApiError where the two do not fit."""
        room = max_len - len(prompt)
        if room < 1:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens; this model's context holds {max_len}, "
                "prompt and answer together: shorten the prompt",
                code=CONTEXT,
                param=self.prompt_name,
            )
        most = room if self.max_tokens is None else self.max_tokens
        if most > room:
            raise ApiError(
                400,
                f"the prompt has {len(prompt)} tokens and {self.limit_name} is {most}; this "
                f"model's context holds {max_len} together: ask for at most {room}",
                code=CONTEXT,
                param=self.limit_name,
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
    limit_name, max_tokens = _limit(request)
    options: GenerateOptions = {
        "min_tokens": request.min_tokens or 0,
        "stop": request.stop or (),
        "stop_token_ids": request.stop_token_ids or (),
        "logprobs": logprobs,
        "ignore_eos": bool(request.ignore_eos),
        "bad_words": request.bad_words or (),
        "cache_salt": request.cache_salt,
    }
    grammar_name, grammar = read_grammar(request)
    if grammar is not None:
        options["grammar"] = grammar
    return Asked(
        laws=tuple(choice_params(_law(request), request.n or 1)),
        options=options,
        max_tokens=max_tokens or usual_tokens,
        grammar=grammar,
        prompt_name="messages" if hasattr(request, "messages") else "prompt",
        limit_name=limit_name,
        grammar_name=grammar_name,
        body=request,
    )


def _limit(request: CompletionRequest | ChatRequest) -> tuple[str, int | None]:
    """A chat's limit has two names."""
    newer: int | None = getattr(request, "max_completion_tokens", None)
    older = request.max_tokens
    if newer is None:
        return "max_tokens", older
    if older is not None and newer != older:
        raise ApiError(
            400,
            f"max_completion_tokens is {newer} and max_tokens {older}, which mean the same; give "
            "one",
            param="max_completion_tokens",
        )
    return "max_completion_tokens", newer


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


def read_grammar(request: CompletionRequest | ChatRequest) -> tuple[str | None, Grammar | None]:
    """What the text has to be, and the parameter that says so: one of many. Raises ApiError for
    two at once, one that is too long, and what is no grammar at all."""
    named = [(name, kind, value) for name, kind, value in _forms(request) if value is not None]
    if not named:
        return None, None
    if len(named) > 1:
        (first, *_), (second, *_), *_ = named
        raise ApiError(
            400, f"{first} and {second} both say what the text is; give one", param=second
        )
    [(name, kind, value)] = named
    with blamed(name):
        grammar = _grammar(kind, value)
    length = sum(map(len, grammar.source))
    if length > LONGEST_GRAMMAR:
        raise ApiError(
            400,
            f"{name} has {length} characters; this server compiles at most {LONGEST_GRAMMAR}",
            code="invalid_value",
            param=name,
        )
    return name, grammar


def _forms(request: CompletionRequest | ChatRequest) -> Iterator[tuple[str, str, object]]:
    """(parameter, kind, value) of each way to say it; a value of None says nothing."""
    kinds = ("json", "regex", "choice", "grammar")
    wanted = request.response_format
    if wanted is not None and wanted.type == "json_object":
        yield "response_format", "json_object", True
    if wanted is not None and wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise ApiError(
                400,
                "response_format is json_schema without its json_schema; give one",
                param="response_format.json_schema",
            )
        yield "response_format", "json", wanted.json_schema.schema_
    for kind in kinds:
        yield f"guided_{kind}", kind, getattr(request, f"guided_{kind}")
    outputs = request.structured_outputs
    if outputs is not None:
        for kind in kinds:
            value = outputs.json_ if kind == "json" else getattr(outputs, kind)
            yield f"structured_outputs.{kind}", kind, value
        yield "structured_outputs.json_object", "json_object", outputs.json_object or None


def _grammar(kind: str, value: Any) -> Grammar:
    """Raises UsageError for a value that is no grammar of that kind."""
    from runtime.grammar import Grammar

    match kind:
        case "json":
            return Grammar.json_schema(value)
        case "regex":
            return Grammar.regex(value)
        case "choice":
            return Grammar.choice(value)
        case "grammar":
            return Grammar.lark(value)
    return Grammar.json_object()
