"""Ids to text while they arrive: only text that no later id can change is given out."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from runtime.text.tokenizer import Tokenizer, token_bytes

REPLACEMENT = "\ufffd"
MAX_HELD = 16
"""Tokens held back for a trailing U+FFFD: an unfinished character has at most 3 bytes."""


class Detokenizer:
    """Incremental ``Tokenizer.decode`` for one sequence.

    The pieces that ``feed`` and the final ``flush`` return, joined, equal ``decode`` of all ids.
    A character whose bytes are spread over several tokens is held back until it is complete, so
    no piece ends in half a character, nor in a U+FFFD that the next token would turn into one.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._pieces: _Pieces = (
            _BytePieces(tokenizer) if tokenizer.is_byte_level else _WindowPieces(tokenizer)
        )
        self._special_ids = tokenizer.special_ids

    def feed(self, ids: Iterable[int]) -> str:
        """Text that became certain with ``ids`` (often one token's, sometimes empty)."""
        return "".join(self._pieces.push(i) for i in ids if i not in self._special_ids)

    def peek(self) -> str:
        """What ``flush`` would return now."""
        return self._pieces.peek()

    def flush(self) -> str:
        """What is still held back (U+FFFD for a character cut off at the end). Ends the text."""
        return self._pieces.flush()


class _Pieces(Protocol):
    def push(self, token_id: int) -> str: ...
    def peek(self) -> str: ...
    def flush(self) -> str: ...


class _BytePieces:
    """Byte-level vocabularies: a token is bytes, the text their UTF-8. Constant work a token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(token_bytes(self._tokenizer.token_of(token_id)))

    def peek(self) -> str:
        undecoded, _ = self._utf8.getstate()
        return REPLACEMENT if undecoded else ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowPieces:
    """Any other decoder: decode the unsettled ids behind the last settled ones, and compare.

    The settled ids give the decoder its left context (a word-start mark is a space everywhere but
    at the very start). A run of byte tokens (``<0xE4>``) is one unit to such decoders, which turn
    all of it into U+FFFD when any part is invalid: it is settled by the token that ends it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._settled: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        token = self._tokenizer.token_of(token_id)
        if token is None:
            return ""
        self._pending.append(token_id)
        if _is_byte_token(token):
            return ""
        if len(self._pending) <= MAX_HELD and self.peek().endswith(REPLACEMENT):
            return ""
        return self.flush()

    def flush(self) -> str:
        text = self.peek()
        self._settled, self._pending = self._pending, []
        return text

    def peek(self) -> str:
        if not self._pending:
            return ""
        before = self._tokenizer.decode(self._settled)
        return self._tokenizer.decode(self._settled + self._pending)[len(before) :]


def _is_byte_token(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")
