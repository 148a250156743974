"""The tokenizer of a bundle: text to ids and back, as the checkpoint's authors defined it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

from engines.errors import BundleCorruptError, MissingDependencyError, UsageError

if TYPE_CHECKING:
    import tokenizers

LONGEST_FOLD = 4
"""Characters that Unicode normalisation may make one of."""


class Tokenizer:
    """Wraps the ``tokenizers`` library over the bytes of a ``tokenizer.json``.

    Text that spells a special token (``<|im_start|>``) becomes that token: chat templates rely on
    it. Nothing is padded or truncated.
    """

    def __init__(self, data: bytes) -> None:
        """Raises MissingDependencyError, or BundleCorruptError for bytes that are no tokenizer."""
        self._inner = _load(data)
        vocabulary = self._inner.get_vocab(with_added_tokens=True)
        self._longest_token = max(map(len, vocabulary), default=1)
        added = self._inner.get_added_tokens_decoder()
        self.vocab_size = max(vocabulary.values(), default=-1) + 1
        """One more than the largest id: every id of this tokenizer is below it."""
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        """Ids that never appear in decoded text."""
        self.is_byte_level = _is_byte_level(self._inner.decoder)
        """Whether a token stands for the same bytes wherever it occurs (GPT-2's alphabet)."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of ``text``. Raises UsageError for text that is not valid Unicode, and
        BundleCorruptError for a tokenizer that contradicts itself.

        ``add_special_tokens`` puts around it what the tokenizer's authors ask for (Llama 3: a
        begin-of-text token); a rendered chat template has that in its text already.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(
                f"the prompt is not valid UTF-8 (at character {error.start}); encode it as UTF-8"
            ) from None
        with _one_line_errors():
            return self._inner.encode(text, add_special_tokens=add_special_tokens).ids

    def may_fit(self, text: str, num_tokens: int) -> bool:
        """False for a text that is surely longer than ``num_tokens``, told without encoding it:
        a large file given by mistake would take minutes, in which ctrl-C is not heard."""
        if not self.is_byte_level:  # elsewhere one "unknown" may stand for any number of characters
            return True
        return len(text) <= LONGEST_FOLD * num_tokens * self._longest_token

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``, special and unknown ones left out; invalid UTF-8 becomes U+FFFD."""
        with _one_line_errors():
            return self._inner.decode(list(ids), skip_special_tokens=True)

    def id_of(self, token: str) -> int | None:
        """The id of one token by its exact name (``<|im_end|>``), None when there is none."""
        return self._inner.token_to_id(token)

    def token_of(self, token_id: int) -> str | None:
        """The name of a token as the vocabulary spells it, None for an id it does not have."""
        return self._inner.id_to_token(token_id)

    def bytes_of(self, token_id: int) -> bytes:
        """What the token adds to a text, as UTF-8: maybe a part of a character, where the
        vocabulary is byte-level. Nothing for a special token or an id it does not have."""
        if token_id in self.special_ids:
            return b""
        if self.is_byte_level:
            return token_bytes(self.token_of(token_id))
        return self.decode([token_id]).encode("utf-8")


def _load(data: bytes) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError:
        raise MissingDependencyError("tokenizers", "cpu", "reading a bundle's tokenizer") from None
    with _one_line_errors():
        inner = tokenizers.Tokenizer.from_buffer(data)
    # A tokenizer.json may carry the truncation its checkpoint was trained with, which would
    # shorten a long prompt without a word.
    inner.no_truncation()
    inner.no_padding()
    return inner


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What the library raises for a damaged file, its panics included, as BundleCorruptError."""
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"  # a BaseException nobody can import
        if not isinstance(error, Exception) and not is_panic:
            raise
        raise BundleCorruptError(
            f"tokenizer.json cannot be used ({' '.join(str(error).split())}); rebuild the bundle"
        ) from None


def _is_byte_level(decoder: tokenizers.decoders.Decoder | None) -> bool:
    if decoder is None:
        return False
    # The library shows what a decoder is made of only in its pickled state, which is JSON.
    match json.loads(decoder.__getstate__()):
        case {"type": "ByteLevel"} | {"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}:
            return True
    return False


def token_bytes(token: str | None) -> bytes:
    """Bytes of a token of a byte-level vocabulary; added tokens outside its alphabet are text."""
    if token is None:
        return b""
    alphabet = _byte_alphabet()
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


@lru_cache(maxsize=1)
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(0x100)) - set(printable))
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
