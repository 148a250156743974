"""The options of a C caller as the runtime has them."""

from __future__ import annotations

import json
import math
from typing import Any

from engines.errors import UsageError
from runtime.embed.memory import Memory
from runtime.grammar import Grammar
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams

OPEN_OPTIONS = (
    *("mode", "verify", "num_draft", "drafter", "branches", "max_batch", "fallback", "saguaro"),
    *("adaptive_length", "backend", "device", "draft_sm_share", "tensor_parallel"),
    "prefix_reuse",
)
"""What of ``LLM.open`` can be said in JSON."""
SWITCHES = ("adaptive_length", "prefix_reuse")
GRAMMARS = {
    "SSD_GRAMMAR_JSON_SCHEMA": Grammar.json_schema,
    "SSD_GRAMMAR_REGEX": Grammar.regex,
    "SSD_GRAMMAR_LARK": Grammar.lark,
}
CHOICE = "SSD_GRAMMAR_CHOICE"


def read_open_options(text: str) -> dict[str, Any]:
    """Keyword arguments for ``LLM.open``, which checks their values. Raises UsageError for what is
    no JSON object with known names."""
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the options are not JSON ({error})") from None
    if not isinstance(options, dict):
        raise UsageError(f"the options are a {type(options).__name__}, expected a JSON object")
    for name, value in options.items():
        if name not in OPEN_OPTIONS:
            raise UsageError(f"unknown option {name!r}, expected {', '.join(OPEN_OPTIONS)}")
        if name in SWITCHES and not isinstance(value, bool):
            raise UsageError(f"{name} is {value!r}, expected true or false")
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{name} is {value}, expected a finite number")
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if name == "draft_sm_share" and value is not None and not is_number:
            raise UsageError(f"{name} is {value!r}, expected a number")
    return options


def read_request_options(
    given: Any, memory: Memory, lib: Any
) -> tuple[SamplingParams, GenerateOptions]:
    """``given`` is a whole ``ssd_options``. Raises UsageError."""
    pairs = memory.items(given.logit_bias, given.num_logit_bias, "logit_bias")
    params = SamplingParams(
        temperature=given.temperature,
        top_k=given.top_k,
        top_p=given.top_p,
        seed=given.seed,
        min_p=given.min_p,
        repetition_penalty=given.repetition_penalty,
        presence_penalty=given.presence_penalty,
        frequency_penalty=given.frequency_penalty,
        logit_bias=tuple((pair.token_id, pair.bias) for pair in pairs),
    )
    options = GenerateOptions(
        max_tokens=given.max_tokens,
        min_tokens=given.min_tokens,
        stop=memory.texts(given.stop, given.num_stop, "stop"),
        stop_token_ids=memory.token_ids(
            given.stop_token_ids, given.num_stop_token_ids, "stop_token_ids"
        ),
        logprobs=_logprobs(given.logprobs),
        ignore_eos=bool(given.ignore_eos),
        bad_words=memory.texts(given.bad_words, given.num_bad_words, "bad_words"),
        grammar=_grammar(given, memory, lib),
    )
    if not memory.is_null(given.cache_salt):
        options["cache_salt"] = memory.text(given.cache_salt, "cache_salt")
    return params, options


def _logprobs(number: int) -> int | None:
    return None if number == -1 else number


def _grammar(given: Any, memory: Memory, lib: Any) -> Grammar | None:
    kinds = {getattr(lib, name): name for name in (*GRAMMARS, CHOICE)}
    if given.grammar_kind == lib.SSD_GRAMMAR_NONE:
        if not memory.is_null(given.grammar):
            raise UsageError("grammar is given without grammar_kind; say what it is written in")
        return None
    kind = kinds.get(given.grammar_kind)
    if kind is None:
        raise UsageError(f"grammar_kind is {given.grammar_kind}, expected an ssd_grammar_kind")
    text = memory.text(given.grammar, "grammar")
    if kind != CHOICE:
        return GRAMMARS[kind](text)
    try:
        answers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the choice is not JSON ({error}), expected a list of texts") from None
    return Grammar.choice(answers)
