"""Grammars over a tokenizer's tokens, by the llguidance library (an optional extra).

The library says after each token which may come next, as bits over the vocabulary: some 15 to 100
us a place for 49,000 tokens, a few ms at the first place of a rule. A state only ever goes forward:
``runtime.sampling.text_law`` tells it of tokens that are emitted, drafted or not.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engines.errors import MissingDependencyError, UsageError
from runtime.grammar.value import Grammar, GrammarKind

if TYPE_CHECKING:
    import llguidance
    from llguidance._lib import JsonCompileOptions

NUM_KEPT = 32
"""Compiled grammars that are kept for the next request with the same one."""
LONGEST_REASON = 300

JSON_OPTIONS: JsonCompileOptions = {"whitespace_pattern": r"[ ]?|\n[ ]{0,40}"}
"""Between two parts of JSON: at most a space, or a line break and an indent. JSON allows any
amount, and a small model that begins to indent need not end."""


class GrammarState:
    """See ``runtime.sampling.text_law.Constraint``. Belongs to one text."""

    def __init__(self, matcher: llguidance.LLMatcher, eos_ids: Collection[int]) -> None:
        """``matcher`` is this state's own, at the text's beginning."""
        self.failure: str | None = None
        """Why the grammar could not go on, and the text was ended before it was complete."""
        self._matcher = matcher
        self._eos_ids = sorted(eos_ids)
        self._is_over = False

    def allowed(self, vocab_size: int) -> npt.NDArray[np.bool_] | None:
        """Which tokens may come next, bool [V]; end-of-sequence only where the text is complete,
        or cannot be continued by any token (``failure``). None: it is over."""
        if self._is_over:
            return None
        if self.failure is None:
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(bits, count=vocab_size, bitorder="little").view(np.bool_)
            if not self._matcher.is_error() and mask.any():
                return mask
            reason = self._matcher.get_error() or "no token of the vocabulary continues the text"
            self.failure = _one_line(reason)
        mask = np.zeros(vocab_size, np.bool_)
        mask[self._eos_ids] = True
        return mask

    def take(self, token: int) -> None:
        """The text goes on with ``token``."""
        if self._is_over or token in self._eos_ids:
            self._is_over = True
        elif self.failure is None and not self._matcher.consume_token(token):
            self.failure = _one_line(self._matcher.get_error())


class GrammarCompiler:
    """Compiles grammars for one tokenizer. May be used from several threads."""

    def __init__(self, tokenizer: bytes, vocab_size: int, eos_ids: Collection[int]) -> None:
        """``tokenizer`` is a tokenizer.json; ``vocab_size`` ids have logits, maybe more or fewer
        than it names; ``eos_ids`` end a text. Nothing is read before it is needed."""
        self._tokenizer_json = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._kept: OrderedDict[Grammar, llguidance.LLMatcher] = OrderedDict()
        self._lock = Lock()

    def start(self, grammar: Grammar) -> GrammarState:
        """The state at the beginning of a text.

        Raises MissingDependencyError, and UsageError for a grammar that cannot be compiled, or a
        model whose texts cannot be held to one.
        """
        if not isinstance(grammar, Grammar):
            raise UsageError(f"grammar is a {type(grammar).__name__}, expected a Grammar")
        if not self._eos_ids:
            raise UsageError(
                "this model has no end-of-sequence token, so a grammar could not end its texts"
            )
        with self._lock:
            matcher = self._kept.get(grammar)
        if matcher is None:  # a large one takes a second, in which nobody waits for the lock
            matcher = self._compile(grammar)
        with self._lock:
            self._kept[grammar] = matcher
            self._kept.move_to_end(grammar)
            if len(self._kept) > NUM_KEPT:
                self._kept.popitem(last=False)
            return GrammarState(matcher.deep_copy(), self._eos_ids)

    def _compile(self, grammar: Grammar) -> llguidance.LLMatcher:
        _require_library()
        import llguidance

        if self._tokenizer is None:
            self._tokenizer = self._read_tokenizer()
        with _refused(grammar) as refuse:
            compiled = _source_of(grammar)
            limits = llguidance.LLParserLimits(verbose_errors=False)
            matcher = llguidance.LLMatcher(self._tokenizer, compiled, log_level=0, limits=limits)
            refuse(matcher.get_error())
        return matcher

    def _read_tokenizer(self) -> llguidance.LLTokenizer:
        import llguidance

        try:
            return llguidance.LLTokenizer(
                _within(self._tokenizer_json, self._vocab_size),
                n_vocab=self._vocab_size,
                eos_token=list(self._eos_ids),
            )
        except (ValueError, OverflowError) as error:
            raise UsageError(
                f"this bundle's tokenizer cannot be held to a grammar: {_one_line(str(error))}"
            ) from None


def _within(tokenizer: bytes, vocab_size: int) -> str:
    """A tokenizer.json without the added tokens that have no logits (Gemma 3's image token), which
    the library takes for a vocabulary of another model."""
    content = json.loads(tokenizer)
    added = content.get("added_tokens") or []
    kept = [token for token in added if token["id"] < vocab_size]
    if len(kept) == len(added):
        return tokenizer.decode("utf-8")
    return json.dumps({**content, "added_tokens": kept}, ensure_ascii=False)


def check(grammar: Grammar) -> None:
    """Raise UsageError for a grammar that no model's texts could be held to, as far as that is
    known without a tokenizer; MissingDependencyError where none can be compiled here."""
    _require_library()
    import llguidance

    with _refused(grammar) as refuse:
        limits = llguidance.LLParserLimits(verbose_errors=False)
        is_wrong, reasons = llguidance.LLMatcher.validate_grammar_with_warnings(
            _source_of(grammar), limits=limits
        )
        refuse(reasons[0] if is_wrong else "")


@contextmanager
def _refused(grammar: Grammar) -> Iterator[Callable[[str], None]]:
    """Takes the library's reason not to use a grammar, or what it raises, as UsageError."""

    def refuse(reason: str) -> None:
        if reason:
            raise ValueError(reason)

    try:
        yield refuse
    except ValueError as error:
        reason = _one_line(str(error))
        raise UsageError(f"the {grammar.kind} cannot be used: {reason}") from None


def _require_library() -> None:
    """Raise MissingDependencyError unless grammars can be compiled here."""
    try:
        import llguidance  # noqa: F401  (only whether it is there)
    except ImportError:
        raise MissingDependencyError("llguidance", "grammar", "holding to a grammar") from None


def _source_of(grammar: Grammar) -> str:
    """The grammar as the library takes it. Raises ValueError."""
    import llguidance

    [*answers] = grammar.source
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            source: str = llguidance.LLMatcher.grammar_from_json_schema(
                answers[0], defaults=JSON_OPTIONS
            )
        case GrammarKind.REGEX:
            source = llguidance.LLMatcher.grammar_from_regex(answers[0])
        case GrammarKind.LARK:
            source = llguidance.LLMatcher.grammar_from_lark(answers[0])
        case GrammarKind.CHOICE:
            source = llguidance.LLMatcher.grammar_from_regex("|".join(map(_escaped, answers)))
    return source


def _escaped(text: str) -> str:
    """A pattern of that very text."""
    return "".join(
        each if each.isascii() and each.isalnum() else f"\\x{{{ord(each):X}}}" for each in text
    )


def _one_line(reason: str) -> str:
    """The library's message without the lines that draw where in the grammar it is."""
    without_picture = re.sub(r"\n(\s*\d+ \||<).*", "", reason, flags=re.DOTALL)
    line = " ".join(without_picture.split()).rstrip(".")
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."
