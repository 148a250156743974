"""A request's text as the caller sees it: which emitted tokens count, and when it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import index
from typing import SupportsIndex

from engines.errors import CapacityError, UsageError
from runtime.sampling.params import SamplingParams


class FinishReason(StrEnum):
    """Why a text ended."""

    STOP = "stop"  # an end-of-sequence token, which is not part of the text
    LENGTH = "length"  # max_tokens were generated
    CONTEXT = "context"  # prompt and text reached the built max_len


@dataclass(slots=True)
class Request:
    """One prompt to continue. ``generated`` holds what the caller has been given, nothing more."""

    prompt: Sequence[int]
    params: SamplingParams
    max_tokens: int
    stop_ids: Collection[int]
    max_len: int
    generated: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def commit(self, emitted: Sequence[int]) -> list[int]:
        """Take one round's tokens in order; returns those that belong to the text.

        The earliest of end-of-sequence, max_tokens and the context's end cuts the block; what
        was emitted beyond it is dropped.
        """
        taken: list[int] = []
        for token in emitted:
            if token in self.stop_ids:
                self.finish_reason = FinishReason.STOP
                break
            taken.append(token)
            if len(self.generated) + len(taken) >= self.max_tokens:
                self.finish_reason = FinishReason.LENGTH
                break
            if len(self.prompt) + len(self.generated) + len(taken) >= self.max_len:
                self.finish_reason = FinishReason.CONTEXT
                break
        self.generated.extend(taken)
        return taken


def read_request(
    prompt: Sequence[int], max_tokens: int, *, max_len: int, vocab_size: int
) -> tuple[list[int], int]:
    """The prompt's ids and the budget as plain ints, numpy's included.

    Raises UsageError or CapacityError unless the request can be served as asked.
    """
    ids = _token_ids(prompt)
    if not ids:
        raise UsageError("the prompt is empty; give at least one token")
    budget = whole_number(max_tokens)
    if budget is None or budget < 1:
        raise UsageError(f"max-tokens is {max_tokens!r}, expected a whole number of at least 1")
    if len(ids) >= max_len:
        raise CapacityError(
            f"the prompt has {len(ids)} tokens, which leaves no room in the {max_len} this "
            "bundle was built for; shorten it or rebuild with a larger --max-len"
        )
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UsageError(
            f"the prompt has token id {wrong}, the vocabulary ends at {vocab_size - 1}"
        )
    return ids, budget


def whole_number(value: object) -> int | None:
    """``value`` as an int where it is a whole number of any kind; None for all else, bool too."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return index(value)
    except TypeError:  # an array, or a number with a fraction
        return None


def _token_ids(prompt: Sequence[int]) -> list[int]:
    is_list = isinstance(prompt, Sequence) or hasattr(prompt, "__array__")
    if isinstance(prompt, str | bytes) or not is_list:
        raise UsageError(
            f"the prompt is a {type(prompt).__name__}, expected a list of token ids; "
            "LLM.encode makes one from text"
        )
    ids = []
    for token in prompt:
        number = whole_number(token)
        if number is None:
            raise UsageError(f"the prompt has {token!r} in it, expected token ids only")
        ids.append(number)
    return ids
