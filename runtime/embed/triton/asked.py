"""A request as it comes from the server -> what an LLM can be asked.

A value may come as a tensor, in the JSON of ``sampling_parameters``, or as a parameter of the
request (the ``parameters`` of HTTP's ``generate``); each once.
"""

from __future__ import annotations

import json
import reprlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from engines.errors import UsageError
from runtime.embed.triton.api import InferenceRequest, Tensor
from runtime.embed.triton.tensors import BY_NAME, FLAG, NUMBER, TEXT, Input
from runtime.grammar import Grammar
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.serve.asked import LONGEST_GRAMMAR
from runtime.text.prompt import Messages

if TYPE_CHECKING:
    from runtime.intake import Prompt
    from runtime.llm import LLM

RESERVED = "triton_"
"""How the server's own request parameters begin."""
LAW = (
    "temperature", "top_k", "top_p", "min_p", "seed",
    "repetition_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
OPTIONS = {
    "max_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "stop_words": "stop",
    "stop_token_ids": "stop_token_ids",
    "bad_words": "bad_words",
    "ignore_eos": "ignore_eos",
    "cache_salt": "cache_salt",
}
"""Input -> name in ``GenerateOptions``."""
NESTED = "sampling_parameters"


@dataclass(frozen=True, slots=True)
class Asked:
    """``prompt``: text, token ids, or a conversation where ``is_chat``. All of it is copied: no
    tensor outlives the server's call."""

    prompt: str | list[int] | Messages
    is_chat: bool
    params: SamplingParams
    options: GenerateOptions
    streams: bool

    def encode(self, llm: LLM) -> Prompt:
        """Raises UsageError for what is no conversation, or without a chat template."""
        if self.is_chat:
            return llm.encode_chat(cast(Messages, self.prompt))
        return cast("Prompt", self.prompt)


def read_request(request: InferenceRequest) -> Asked:
    """Raises UsageError for what is unknown, said twice, or no value of its kind."""
    given = _Given()
    for tensor in request.inputs():
        given.take(tensor.name(), _of_tensor(_known(tensor.name()), tensor))
    nested = given.values.pop(NESTED, None)
    for source, text in ((NESTED, nested), ("parameters", request.parameters() or "{}")):
        if text:
            for name, value in _object(source, text).items():
                if not name.startswith(RESERVED):
                    given.take(name, _of_json(_known(name), value))
    return _asked(given.values)


class _Given:
    """Values by what they mean."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._names: dict[str, str] = {}

    def take(self, name: str, value: object) -> None:
        meant = BY_NAME[name].means or name
        if meant in self.values:
            raise UsageError(f"{self._names[meant]} and {name} say the same; give one, once")
        is_one_of_many = BY_NAME[meant].is_list and not BY_NAME[name].is_list
        self.values[meant] = [value] if is_one_of_many else value
        self._names[meant] = name


def _known(name: str) -> Input:
    if name not in BY_NAME:
        raise UsageError(f"{name!r} is not served; known are {', '.join(BY_NAME)}")
    return BY_NAME[name]


def _of_tensor(field: Input, tensor: Tensor) -> object:
    """The tensor's value in plain Python."""
    array = np.asarray(tensor.as_numpy()).reshape(-1)
    items = _plain(field, array)
    if field.is_list:
        return items
    if len(items) != 1:
        raise UsageError(f"{field.name} has {len(items)} values, expected one")
    return items[0]


def _plain(field: Input, array: npt.NDArray[Any]) -> list[Any]:
    if field.data_type == TEXT:
        return [_decoded(field, each) for each in array]
    if field.data_type == NUMBER:
        # The number that the client wrote: a 0.8 in single precision is not Python's 0.8.
        return [float(str(each)) for each in array]
    items: list[Any] = array.tolist()
    return items


def _decoded(field: Input, item: bytes | str) -> str:
    if isinstance(item, str):
        return item
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{field.name} is not UTF-8 text") from None


def _object(source: str, text: object) -> dict[str, object]:
    try:
        found = json.loads(str(text))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{source} is a JSON {type(found).__name__}, expected an object")
    return found


def _of_json(field: Input, value: object) -> object:
    """vLLM's clients write numbers and flags as text, too; a single stop string need not be a
    list."""
    if field.name == NESTED:
        raise UsageError(f"{NESTED} must be an input of its own")
    if not field.is_list:
        return _one(field, value)
    items = value if isinstance(value, list) else [value]
    return [_one(field, each) for each in items]


def _one(field: Input, value: object) -> object:
    read = {TEXT: _text, FLAG: _flag, NUMBER: _number}.get(field.data_type, _whole)
    found = read(value)
    if found is None:
        raise UsageError(f"{field.name} is {reprlib.repr(value)}, expected a {field.data_type}")
    return found


def _text(value: object) -> object:
    return value if isinstance(value, str) else None


def _flag(value: object) -> object:
    spelled = {"true": True, "false": False}
    return spelled.get(value.lower()) if isinstance(value, str) else _only(value, bool)


def _number(value: object) -> object:
    return _converted(float, value)


def _whole(value: object) -> object:
    is_fraction = isinstance(value, float) and not value.is_integer()
    return None if is_fraction else _converted(int, value)


def _converted(kind: type[int] | type[float], value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return kind(value)
    except (ValueError, OverflowError):
        return None


def _only(value: object, kind: type) -> object:
    return value if isinstance(value, kind) else None


def _asked(given: Mapping[str, Any]) -> Asked:
    prompt, is_chat = _prompt(given)
    if given.get("exclude_input_in_output") is False:
        raise UsageError(
            "exclude_input_in_output is false, and an answer here is the new text alone; put the "
            "prompt before it yourself"
        )
    law = {name: given[name] for name in LAW if name in given}
    law.setdefault("seed", secrets.randbits(63))
    if law.get("top_k") == -1:
        law["top_k"] = 0
    options: dict[str, Any] = {
        option: given[name] for name, option in OPTIONS.items() if name in given
    }
    for name in ("stop", "bad_words"):  # TensorRT-LLM's clients send an empty one for none
        if name in options:
            options[name] = [each for each in options[name] if each]
    if options.get("cache_salt") == "":
        del options["cache_salt"]
    if given.get("return_log_probs"):
        options["logprobs"] = 0
    if (grammar := _grammar(given)) is not None:
        options["grammar"] = grammar
    return Asked(
        prompt,
        is_chat,
        SamplingParams(**law),
        cast(GenerateOptions, options),
        bool(given.get("stream", False)),
    )


def _prompt(given: Mapping[str, Any]) -> tuple[str | list[int] | Messages, bool]:
    ways = [name for name in ("text_input", "messages", "input_ids") if name in given]
    if len(ways) != 1:
        raise UsageError(
            f"the request has {' and '.join(ways) or 'no prompt'}; give one of text_input, "
            "messages and input_ids"
        )
    is_chat = bool(given.get("chat", False))
    if ways == ["text_input"]:
        text: str = given["text_input"]
        return ([{"role": "user", "content": text}] if is_chat else text), is_chat
    if is_chat and ways == ["input_ids"]:
        raise UsageError("chat goes with text_input; token ids are taken as they are")
    if ways == ["input_ids"]:
        return list(given["input_ids"]), False
    return cast(Messages, _list("messages", given["messages"])), True


def _list(what: str, text: str) -> Sequence[object]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON ({error})") from None
    if not isinstance(found, list):
        raise UsageError(f"{what} is a JSON {type(found).__name__}, expected a list")
    return found


def _grammar(given: Mapping[str, Any]) -> Grammar | None:
    kind, guide = given.get("guided_decoding_guide_type"), given.get("guided_decoding_guide")
    if guide is not None and len(guide) > LONGEST_GRAMMAR:
        raise UsageError(
            f"guided_decoding_guide has {len(guide)} characters; at most {LONGEST_GRAMMAR} are "
            "compiled here"
        )
    match kind, guide:
        case None | "", None | "":
            return None
        case "json", None | "":
            return Grammar.json_object()
        case "json_schema", str():
            return Grammar.json_schema(guide)
        case "regex", str():
            return Grammar.regex(guide)
        case "lark", str():
            return Grammar.lark(guide)
        case "choice", str():
            return Grammar.choice(cast(Sequence[str], _list("guided_decoding_guide", guide)))
    raise UsageError(
        f"guided_decoding_guide_type is {kind!r}, expected json (without a guide), json_schema, "
        "regex, lark or choice (with one)"
    )
