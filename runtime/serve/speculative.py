"""``--speculative-config JSON``: how to draft, in the shape that vLLM made common. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from engines.errors import UsageError

METHODS = {
    "ssd": {"mode": "ssd"},
    "draft_model": {"mode": "sd", "drafter": "model"},
    "ngram": {"mode": "sd", "drafter": "lookup"},
    "auto": {"mode": "auto"},
}
"""vLLM's names where it has one, and what ``LLM.open`` is asked for."""
RULES = {"strict": "coupled", "probabilistic": "ratio"}
SETTLED = {
    **dict.fromkeys(
        ("prompt_lookup_max", "prompt_lookup_min"),
        "text is copied where it is likely to be accepted, whatever the length of the match; "
        "drop it",
    ),
    "model": "the draft is compiled into the bundle; build another bundle for another draft",
    "max_model_len": "the bundle was built for a length; rebuild it with --max-len",
    "tensor_parallel_size": "the target's layout is no part of it; see --tensor-parallel",
}
"""Keys that others have, and what settles them here."""


def read_speculative_config(text: str) -> dict[str, Any]:
    """Arguments of ``LLM.open``, for the keys that are there; null asks for nothing.

    method                    ssd, draft_model (sd), ngram (lookup alone), auto
    num_speculative_tokens    K
    num_branches, fallback, drafter
                              our own: outcomes prepared (W), what a miss goes on with, and where
                              drafts come from
    rejection_sample_method   strict (the coupled rule) or probabilistic (the ratio rule)
    draft_tensor_parallel_size
                              1

    Raises UsageError that names the key.
    """
    wishes: dict[str, Any] = {}
    for key, value in _object(text).items():
        if key in SETTLED:
            raise UsageError(f"--speculative-config has {key!r}: {SETTLED[key]}")
        if key not in _READERS:
            raise UsageError(
                f"--speculative-config has {key!r}, expected only {', '.join(_READERS)}"
            )
        if value is not None:
            wishes |= _READERS[key](key, value)
    return wishes


def _object(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--speculative-config is not JSON ({error})") from None
    if not isinstance(read, dict):
        raise UsageError(
            '--speculative-config is no JSON object; give for example \'{"method": "ssd"}\''
        )
    return read


def _method(key: str, value: object) -> dict[str, Any]:
    return dict(METHODS[_one_of(key, value, METHODS)])


def _rule(key: str, value: object) -> dict[str, Any]:
    return {"verify": RULES[_one_of(key, value, RULES)]}


def _word(name: str, *words: str) -> Callable[[str, object], dict[str, Any]]:
    return lambda key, value: {name: _one_of(key, value, words)}


def _count(name: str) -> Callable[[str, object], dict[str, Any]]:
    def read(key: str, value: object) -> dict[str, Any]:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise _wrong(key, value, "a whole number of at least 1")
        return {name: value}

    return read


def _only_one(key: str, value: object) -> dict[str, Any]:
    if isinstance(value, bool) or value != 1:
        raise _wrong(key, value, "1: a draft runs on one device")
    return {}


_READERS: dict[str, Callable[[str, object], dict[str, Any]]] = {
    "method": _method,
    "num_speculative_tokens": _count("num_draft"),
    "num_branches": _count("branches"),
    "fallback": _word("fallback", "auto", "zero", "jit", "lookup"),
    "drafter": _word("drafter", "auto", "model", "lookup", "both"),
    "rejection_sample_method": _rule,
    "draft_tensor_parallel_size": _only_one,
}


def _one_of(key: str, value: object, words: Any) -> str:
    if not isinstance(value, str) or value not in words:
        raise _wrong(key, value, " or ".join(words))
    return value


def _wrong(key: str, value: object, expected: str) -> UsageError:
    return UsageError(f"--speculative-config: {key} is {value!r}, expected {expected}")
