"""Answers in OpenAI's two shapes: texts (``text_completion``) and chats (``chat.completion``).

Plain dicts, as they are sent.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runtime.completion import Completion
from runtime.sampling.logprobs import TokenLogprobs
from runtime.serve.api import Piece, Texts
from runtime.serve.generation import Generation
from runtime.stats import Stats

ENDINGS = {
    "stop": "stop",
    "grammar": "abort",
    "length": "length",
    "context": "length",
    "cancelled": "abort",
}
"""OpenAI's words for ours. It has none for a text that the server itself ended, or that could not
come to the end it was asked for; vLLM's is abort."""
Record = dict[str, Any]


def usage(generation: Generation) -> Record:
    """A prompt counts once, however many choices continue it."""
    num_prompt = generation.num_prompt_tokens
    num_generated = sum(len(each.token_ids) for each in generation.completions if each is not None)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": generation.num_cached_tokens},
    }


def spec_metrics(stats: Sequence[Stats]) -> Record:
    """How the drafts fared, under vLLM's names.

    mean_acceptance_length = emitted tokens / verifications, bonus tokens included;
    draft_acceptance_rate = drafted tokens that became text / drafted tokens that were verified
    """
    num_rounds = sum(each.num_rounds for each in stats)
    num_drafted = sum(each.num_drafted for each in stats)
    num_accepted = sum(each.num_accepted for each in stats)
    num_emitted = sum(each.num_emitted for each in stats)
    histograms = [each.histogram for each in stats]
    width = max(map(len, histograms), default=0)
    return {
        "speculative_decoding": {
            "mean_acceptance_length": num_emitted / num_rounds if num_rounds else None,
            "draft_acceptance_rate": num_accepted / num_drafted if num_drafted else None,
            "acceptance_histogram": [
                sum(each[k] for each in histograms if k < len(each)) for k in range(width)
            ],
            "num_spec_steps": num_rounds,
            "num_accepted_draft_tokens": num_accepted,
            "num_draft_tokens": num_drafted,
        }
    }


class Speller:
    """How single tokens are written in log-probabilities."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts

    def text(self, token_id: int) -> str:
        """A special token by its name; half a character as U+FFFD."""
        return self.bytes_of(token_id).decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        if token_id in self._texts.special_ids:
            return (self._texts.token_of(token_id) or "").encode("utf-8")
        return self._texts.bytes_of(token_id)


class Shape(Protocol):
    """One of the two ways to write an answer."""

    def whole(self, index: int, completion: Completion) -> Record:
        """A complete choice."""

    def opening(self, index: int) -> Record | None:
        """What a stream says first of a choice; None: nothing."""

    def piece(self, index: int, piece: Piece) -> Record:
        """A choice's next piece."""

    def ending(self, index: int, completion: Completion) -> Record:
        """What a stream says last of a choice."""


@dataclass
class TextShape:
    """``/v1/completions``."""

    speller: Speller
    offsets: dict[int, int] = field(default_factory=dict)

    def whole(self, index: int, completion: Completion) -> Record:
        ids, entries = completion.token_ids, completion.logprobs
        return {
            "index": index,
            "text": completion.text,
            "logprobs": None if entries is None else self._logprobs(index, ids, entries),
            "finish_reason": ENDINGS[completion.finish_reason],
            "stop_reason": completion.stop_reason,
        }

    def opening(self, index: int) -> Record | None:  # noqa: ARG002 - of the protocol
        return None

    def piece(self, index: int, piece: Piece) -> Record:
        entries = piece.logprobs
        return {
            "index": index,
            "text": piece.text,
            "logprobs": None
            if entries is None
            else self._logprobs(index, piece.token_ids, entries),
            "finish_reason": None,
        }

    def ending(self, index: int, completion: Completion) -> Record:
        return {
            "index": index,
            "text": "",
            "logprobs": None,
            "finish_reason": ENDINGS[completion.finish_reason],
            "stop_reason": completion.stop_reason,
        }

    def _logprobs(self, index: int, ids: Sequence[int], entries: Sequence[TokenLogprobs]) -> Record:
        """Parallel lists. ``text_offset`` counts the characters of the tokens before."""
        names = [self.speller.text(token) for token in ids]
        offsets, end = [], self.offsets.get(index, 0)
        for name in names:
            offsets.append(end)
            end += len(name)
        self.offsets[index] = end
        return {
            "tokens": names,
            "token_logprobs": [each.logprob for each in entries],
            "top_logprobs": [
                {self.speller.text(token): value for token, value in _top(each)} for each in entries
            ],
            "text_offset": offsets,
        }


@dataclass
class ChatShape:
    """``/v1/chat/completions``."""

    speller: Speller

    def whole(self, index: int, completion: Completion) -> Record:
        ids, entries = completion.token_ids, completion.logprobs
        return {
            "index": index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": None if entries is None else self._logprobs(ids, entries),
            "finish_reason": ENDINGS[completion.finish_reason],
            "stop_reason": completion.stop_reason,
        }

    def opening(self, index: int) -> Record | None:
        return self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, piece: Piece) -> Record:
        entries = piece.logprobs
        return self._chunk(
            index,
            {"content": piece.text},
            None if entries is None else self._logprobs(piece.token_ids, entries),
        )

    def ending(self, index: int, completion: Completion) -> Record:
        return self._chunk(index, {}) | {
            "finish_reason": ENDINGS[completion.finish_reason],
            "stop_reason": completion.stop_reason,
        }

    def _chunk(self, index: int, delta: Record, logprobs: Record | None = None) -> Record:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _logprobs(self, ids: Sequence[int], entries: Sequence[TokenLogprobs]) -> Record:
        return {
            "content": [
                self._entry(token, each.logprob)
                | {"top_logprobs": [self._entry(*pair) for pair in _top(each)]}
                for token, each in zip(ids, entries, strict=True)
            ],
            "refusal": None,
        }

    def _entry(self, token: int, logprob: float) -> Record:
        return {
            "token": self.speller.text(token),
            "logprob": logprob,
            "bytes": list(self.speller.bytes_of(token)),
        }


def _top(entry: TokenLogprobs) -> list[tuple[int, float]]:
    return list(zip(entry.top_ids.tolist(), entry.top_logprobs.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Envelope:
    """What surrounds the choices of one answer."""

    id: str
    kind: str
    created: int
    model: str

    @classmethod
    def new(cls, prefix: str, kind: str, model: str) -> Envelope:
        return cls(f"{prefix}-{secrets.token_hex(12)}", kind, int(time.time()), model)

    def around(self, choices: list[Record], **more: object) -> Record:
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            **more,
        }
