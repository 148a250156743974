"""Prompts as a bundle's model wants them: text or messages to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from engines.bundle import Bundle
from engines.errors import CapacityError, UsageError
from runtime.text.chat import ChatTemplate
from runtime.text.tokenizer import Tokenizer

Messages = Sequence[Mapping[str, str]]
"""Turns of a conversation, the oldest first: each a ``role`` and its ``content``."""


class Prompts:
    """A bundle's tokenizer and chat template. May be used from several threads."""

    def __init__(self, bundle: Bundle, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._max_len = bundle.manifest.limits.max_len
        self._special_tokens = bundle.manifest.special_tokens
        self._path: Path = bundle.path
        path = bundle.chat_template_path
        self._source = None if path is None else path.read_bytes()
        self._template: ChatTemplate | None = None

    @property
    def has_chat_template(self) -> bool:
        return self._source is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text. Raises UsageError for an empty one, CapacityError for one that
        surely does not fit."""
        if not isinstance(text, str):
            raise UsageError(f"the prompt is a {type(text).__name__}, expected text")
        if not text:
            raise UsageError("the prompt is empty; give some text")
        return self._ids(text, add_special_tokens=True)

    def encode_chat(self, messages: Messages) -> list[int]:
        """Ids of a conversation, in the chat template, up to where the assistant's turn begins.

        Raises UsageError for what are no messages, or a bundle without a template, and
        CapacityError as ``encode`` does.
        """
        text = self._chat_template().render(_checked(messages))
        # A chat template writes the begin-of-text token itself, where the model wants one.
        return self._ids(text, add_special_tokens=False)

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if not self._tokenizer.may_fit(text, self._max_len):
            raise CapacityError(
                f"the prompt has {len(text)} characters, more than {self._max_len} tokens can "
                "hold; shorten it or rebuild with a larger --max-len"
            )
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _chat_template(self) -> ChatTemplate:
        """Compiled when it is first asked for: a damaged one must not keep plain prompts out."""
        if self._source is None:
            raise UsageError(
                f"{self._path} has no chat template (its checkpoint has none); leave --chat away"
            )
        if self._template is None:
            self._template = ChatTemplate.from_bytes(self._source, self._special_tokens)
        return self._template


def _checked(messages: Messages) -> Messages:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise UsageError(
            f"messages is a {type(messages).__name__}, expected a list of objects with a role and "
            "a content"
        )
    if not messages:
        raise UsageError("messages is empty; give at least one")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UsageError(f"message {number} is a {type(message).__name__}, expected an object")
        for name in ("role", "content"):
            value = message.get(name)
            if not isinstance(value, str):
                raise UsageError(f"message {number} has {name} {value!r}, expected text")
    return messages
