"""Bodies of requests, as OpenAI names their parts, with what vLLM adds.

What a server like this could ignore it refuses: an unknown parameter by its name, and a known one
that is not served unless it asks for nothing (``null``, or the value that means "off").
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from runtime.sampling.params import MOST_CHOICES

MOST_STOPS = 16
MOST_LOGPROBS = 20
"""As many as vLLM gives; OpenAI's own limit is 5 for texts and 20 for chats."""
LEAST_SEED, MOST_SEED = -(2**63), 2**64 - 1

MOST_BIASES = 4096
MOST_STOP_IDS = 1024
MOST_LABELS = 16

Item = TypeVar("Item")
Few: TypeAlias = Annotated[list[Item], Field(fail_fast=True)]
"""A list whose first wrong item settles it: an error for each of a million costs gigabytes."""
TokenIds: TypeAlias = Few[Annotated[int, Field(ge=0)]]
Word: TypeAlias = Annotated[str, Field(min_length=1)]
BadWord: TypeAlias = Annotated[str, Field(min_length=1, max_length=256)]
Stops: TypeAlias = str | Annotated[list[Word], Field(max_length=MOST_STOPS)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]
Bias: TypeAlias = Annotated[float, Field(ge=-100, le=100)]
Off: TypeAlias = Literal[False] | None


def _few_biases(value: object) -> object:
    """Before they are looked at one by one."""
    if isinstance(value, dict) and len(value) > MOST_BIASES:
        raise ValueError(f"logit_bias has {len(value)} tokens; at most {MOST_BIASES} are served")
    return value


def no_json(body: dict[str, object]) -> str | None:
    """What in a body Python reads as JSON and nobody else does; None where there is nothing.

    The JSON writer finds it, as it is quick: a body may have a million values.
    """
    for name, value in body.items():
        place = name if name.isascii() else "a name or its value"
        try:
            json.dumps({name: value}, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            return f"{place} has half a character (a lone surrogate) in it"
        except ValueError:
            return f"{place} has NaN or an infinity in it, which JSON has not"
        except RecursionError:
            return f"{place} is nested too deeply"
    return None


def one_unknown(model: type[BaseModel], body: dict[str, object]) -> dict[str, object]:
    """``body`` without all but one of the names that the model does not have: one is enough to
    refuse it by, an error for each of a million takes minutes."""
    known = {field.alias or name for name, field in model.model_fields.items()}
    unknown = [name for name in body if name not in known]
    dropped = set(unknown[1:])
    return {name: value for name, value in body.items() if name not in dropped}


class _Body(BaseModel):
    """No value becomes one of another type ("5" is no number), and no part goes unseen."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, body: object) -> object:
        return one_unknown(cls, body) if isinstance(body, dict) else body


class StreamOptions(_Body):
    """``include_usage``: one more chunk at the end has the counts of tokens."""

    include_usage: bool | None = None
    include_obfuscation: Off = None
    continuous_usage_stats: Off = None


class JsonSchema(_Body):
    """``strict`` false would allow other texts; there are none here."""

    name: str
    schema_: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Body):
    """What the text has to be: anything, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(_Body):
    """vLLM's newer form of ``guided_*``; one of them."""

    json_: dict[str, JsonValue] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: Few[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class _Asked(_Body):
    """What both kinds of request share."""

    model: str | None = Field(default=None, description="the served model's name")
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = Field(
        default=None, description="among how many tokens to sample; 0 or -1: all"
    )
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1e30)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: Annotated[
        dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias] | None,
        BeforeValidator(_few_biases),
    ] = None
    seed: Annotated[int, Field(ge=LEAST_SEED, le=MOST_SEED)] | None = Field(
        default=None, description="the same seed gives the same text; without one, a random one"
    )
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[TokenIds, Field(max_length=MOST_STOP_IDS)] | None = None
    bad_words: Annotated[Few[BadWord], Field(max_length=100)] | None = None
    cache_salt: Word | None = Field(
        default=None, description="share cached prompts only with requests that have the same"
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, JsonValue] | str | None = None
    guided_regex: str | None = None
    guided_choice: Few[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = Field(default=None, description="a name of yours; changes nothing")

    # Served nowhere here. These values of them ask for nothing.
    skip_special_tokens: Literal[True] | None = None
    spaces_between_special_tokens: Literal[True] | None = None
    include_stop_str_in_output: Off = None
    prompt_logprobs: None = None

    @model_validator(mode="before")
    @classmethod
    def _is_json(cls, body: object) -> object:
        if isinstance(body, dict) and (fault := no_json(one_unknown(cls, body))) is not None:
            raise ValueError(fault)
        return body


class CompletionRequest(_Asked):
    """Continue a text. ``prompt``: a text, token ids, or a list of either."""

    prompt: (
        str
        | Annotated[Few[str], Field(min_length=1)]
        | Annotated[TokenIds, Field(min_length=1)]
        | Annotated[Few[Annotated[TokenIds, Field(min_length=1)]], Field(min_length=1)]
    )
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    echo: Off = None
    suffix: None = None
    best_of: Literal[1] | None = None


class TextPart(_Body):
    type: Literal["text"]
    text: str


class Message(_Body):
    """One message. The parts that a client copies from an earlier answer may be there, empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Few[TextPart]
    name: str | None = None

    refusal: None = None
    audio: None = None
    annotations: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    function_call: None = None
    tool_calls: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    reasoning: None = None
    reasoning_content: None = None

    def as_said(self) -> dict[str, str]:
        """As the chat template gets it. OpenAI's ``developer`` is what others call ``system``."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        said = {"role": "system" if self.role == "developer" else self.role, "content": text}
        return said if self.name is None else said | {"name": self.name}


class ChatRequest(_Asked):
    """Answer the last message of a conversation."""

    messages: Annotated[Few[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None

    tools: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    functions: Annotated[list[JsonValue], Field(max_length=0)] | None = None
    tool_choice: Literal["none"] | None = None
    function_call: Literal["none"] | None = None
    parallel_tool_calls: bool | None = Field(default=None, description="there are no tools")
    modalities: Few[Literal["text"]] | None = None
    audio: None = None
    prediction: None = None
    moderation: None = None
    reasoning_effort: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None
    store: Off = None
    metadata: Annotated[dict[str, str], Field(max_length=MOST_LABELS)] | None = Field(
        default=None, description="labels of yours; changes nothing"
    )
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = Field(default=None, description="changes nothing")
    prompt_cache_key: str | None = Field(default=None, description="changes nothing")
    prompt_cache_options: None = None
    prompt_cache_retention: Literal["in_memory", "in-memory"] | None = Field(
        default=None, description="as it is"
    )
    add_generation_prompt: Literal[True] | None = None


KNOWN_EXAMPLES: dict[str, dict[str, Any]] = {
    "completion": {"prompt": "The river", "max_tokens": 8, "temperature": 0},
    "chat": {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 8},
}
"""Shown in the OpenAPI document."""
