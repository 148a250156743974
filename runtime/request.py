"""A request's text as the caller sees it: which emitted tokens count, and when it ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import index
from typing import Any, Protocol, SupportsIndex, TypedDict, cast

from engines.errors import CapacityError, UsageError
from runtime.grammar.value import Grammar
from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.params import SamplingParams
from runtime.sampling.text_law import Constraint


class FinishReason(StrEnum):
    """Why a text ended."""

    STOP = "stop"  # an end-of-sequence token, a stop token or a stop string; not in the text
    LENGTH = "length"  # max_tokens were generated
    CONTEXT = "context"  # prompt and text reached the built max_len
    CANCELLED = "cancelled"  # the caller wanted no more
    GRAMMAR = "grammar"  # the grammar could not go on, see ``Constraint.failure``


class StopFinder(Protocol):
    """Looks for stop strings in the text of the tokens (``runtime.text.stop.StopText``)."""

    @property
    def num_certain(self) -> int:
        """How many of the tokens so far no stop string can take back any more."""

    def push(self, token: int) -> int | None:
        """Take the next token: None, or, when a stop string is complete, how many of all tokens
        stand before it."""

    def flush(self) -> int | None:
        """The text ends here, and nothing is uncertain any more; answers as ``push`` does."""


class Grammatical(Constraint, Protocol):
    """A constraint that can fail (``runtime.grammar.GrammarState``)."""

    @property
    def failure(self) -> str | None:
        """Why the text was ended before the grammar was satisfied; None where it was not."""


@dataclass(slots=True)
class Request:
    """One prompt to continue, and its text so far. Owned by the scheduler until it has ended.

    params        how to sample; where ``min_tokens`` asks for it, with the ban of ``stop_ids``
                  up to there added: the law itself has no early end, so nothing is ignored later
    stop_ids      end-of-sequence and stop tokens: they end the text and are not part of it
    max_len       positions that prompt and text may fill together
    min_tokens    that many tokens are generated at least (max_tokens and max_len permitting)
    stop          finds stop strings, told of ``min_tokens`` when it was made; None: there are none
    num_logprobs  log-probabilities of the chosen and so many likeliest tokens; None: of none
    constraint    the grammar's state at the text's beginning, the target's once this is submitted
    banned_sequences
                  tokens that the text may not have one after the other
    cache_salt    rows of earlier texts are used again only where theirs was the same

    generated     tokens of the text; the last ones may still be taken back by a stop string
                  until ``commit`` has returned them
    logprobs      one entry for each of ``generated``, if ``num_logprobs`` asks for them
    num_emitted   tokens of rounds up to where the text ended, those of the stop included
    stop_token    the one of ``stop_ids`` that ended the text, if one did
    """

    prompt: Sequence[int]
    params: SamplingParams
    max_tokens: int
    stop_ids: Collection[int]
    max_len: int
    min_tokens: int = 0
    stop: StopFinder | None = None
    num_logprobs: int | None = None
    constraint: Grammatical | None = None
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    cache_salt: str | None = None
    generated: list[int] = field(default_factory=list, init=False)
    logprobs: list[TokenLogprobs] = field(default_factory=list, init=False)
    num_emitted: int = field(default=0, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_token: int | None = field(default=None, init=False)
    _num_returned: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.min_tokens and self.stop_ids:
            self.params = replace(
                self.params,
                banned_ids=tuple(sorted(self.stop_ids)),
                banned_before=len(self.prompt) + self.min_tokens,
            )
        if self.banned_sequences or self.constraint is not None:
            self.params = replace(
                self.params,
                banned_sequences=self.banned_sequences,
                is_constrained=self.constraint is not None,
            )

    def commit(self, emitted: Sequence[int], logprobs: Sequence[TokenLogprobs] = ()) -> list[int]:
        """Take one round's tokens in order; returns those that became certain to be text.

        The earliest of stop token, stop string, max_tokens and the context's end cuts the block;
        what was emitted beyond it is dropped. A stop wins over a limit that the same token
        reaches. ``logprobs`` has one entry a token where ``num_logprobs`` asks for them.
        """
        for place, token in enumerate(emitted):
            if self.finish_reason is not None:
                break
            self._take(token, logprobs[place] if self.num_logprobs is not None else None)
        return self._newly_certain()

    def cancel(self) -> None:
        """End the text here, unless it has ended already; ``commit`` returns what was held."""
        if self.finish_reason is None:
            self._end(FinishReason.CANCELLED)

    def _take(self, token: int, logprobs: TokenLogprobs | None) -> None:
        self.num_emitted += 1
        if token in self.stop_ids:
            self.stop_token = token
            is_complete = self.constraint is None or self.constraint.failure is None
            self._end(FinishReason.STOP if is_complete else FinishReason.GRAMMAR)
            return
        self.generated.append(token)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        kept = None if self.stop is None else self.stop.push(token)
        if kept is not None:
            self._cut(kept)
        elif len(self.generated) >= self.max_tokens:
            self._end(FinishReason.LENGTH)
        elif len(self.prompt) + len(self.generated) >= self.max_len:
            self._end(FinishReason.CONTEXT)

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        kept = None if self.stop is None else self.stop.flush()
        if kept is not None:
            self._cut(kept)

    def _cut(self, kept: int) -> None:
        self.finish_reason, self.stop_token = FinishReason.STOP, None
        del self.generated[kept:]
        del self.logprobs[kept:]

    def _newly_certain(self) -> list[int]:
        certain = len(self.generated)
        if self.stop is not None and self.finish_reason is None:
            certain = self.stop.num_certain
        taken = self.generated[self._num_returned : certain]
        self._num_returned = certain
        return taken


class GenerateOptions(TypedDict, total=False):
    """What ``LLM.generate`` and its kin take beside the prompt and how to sample.

    max_tokens      the longest answer, in tokens (128)
    min_tokens      the shortest: until then no stop has any probability, nor is one looked for (0)
    stop            a string or several: the text ends before the first that occurs in it (none)
    stop_token_ids  tokens that end the text as end-of-sequence does, beside that one (none)
    logprobs        log-probabilities of each token and of so many likeliest ones (None: of none)
    ignore_eos      the model's end-of-sequence is a token like others, and the text goes on (False)
    bad_words       a string or several: their tokens, with and without a space in front, do not
                    follow one another in the text; a word spelled with other tokens may (none)
    grammar         what the text has to be (``runtime.grammar.Grammar``): each token is one with
                    which it can still become that, and end-of-sequence comes where it is (None)
    cache_salt      cache rows of earlier texts are used again only where theirs was the same, so
                    that nobody learns from times what others have asked (None: a salt, too)
    """

    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    logprobs: int | None
    ignore_eos: bool
    bad_words: str | Sequence[str]
    grammar: Grammar | None
    cache_salt: str | None


@dataclass(frozen=True, slots=True)
class Ending:
    """``GenerateOptions`` as plain values, checked."""

    max_tokens: int
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    logprobs: int | None
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    grammar: Grammar | None = None
    cache_salt: str | None = None


def read_options(
    *,
    vocab_size: int | None,
    max_tokens: int = 128,
    min_tokens: int = 0,
    stop: str | Sequence[str] = (),
    stop_token_ids: Sequence[int] = (),
    logprobs: int | None = None,
    ignore_eos: bool = False,
    bad_words: str | Sequence[str] = (),
    grammar: Grammar | None = None,
    cache_salt: str | None = None,
) -> Ending:
    """``vocab_size`` is None where no model is open yet, so that no id is known to be too large.

    Raises UsageError for an option that cannot be served as asked.
    """
    most = _count("max-tokens", max_tokens, least=1)
    fewest = _count("min-tokens", min_tokens, least=0)
    if fewest > most:
        raise UsageError(f"min-tokens is {fewest}, more than max-tokens, which is {most}")
    if isinstance(stop_token_ids, str | bytes) or not _has_items(stop_token_ids):
        raise UsageError(f"stop-token-ids is {stop_token_ids!r}, expected a list of token ids")
    ids = tuple(_count("a stop token id", token, least=0) for token in stop_token_ids)
    if vocab_size is not None:
        _check_ids("stop-token-ids has", ids, vocab_size)
    if not isinstance(ignore_eos, bool):
        raise UsageError(f"ignore-eos is {ignore_eos!r}, expected True or False")
    if cache_salt is not None and not (isinstance(cache_salt, str) and cache_salt):
        raise UsageError(f"cache-salt is {cache_salt!r}, expected a string that is not empty")
    words = _strings("bad-words", bad_words)
    if grammar is not None:
        _require_free(grammar, {"min-tokens": fewest, "ignore-eos": ignore_eos, "bad-words": words})
    return Ending(
        max_tokens=most,
        min_tokens=fewest,
        stop=_strings("stop", stop),
        stop_token_ids=ids,
        logprobs=None if logprobs is None else _count("logprobs", logprobs, least=0),
        ignore_eos=ignore_eos,
        bad_words=words,
        grammar=grammar,
        cache_salt=cache_salt,
    )


def _require_free(grammar: object, others: Mapping[str, object]) -> None:
    """A grammar may leave one token only, which no other option may then take away."""
    if not isinstance(grammar, Grammar):
        raise UsageError(
            f"grammar is a {type(grammar).__name__}, expected a Grammar, such as "
            "Grammar.json_schema({...})"
        )
    for name, value in others.items():
        if value:
            raise UsageError(
                f"{name} cannot go with a grammar, which may leave no other token; leave one away"
            )


def read_prompt(prompt: Sequence[int], *, max_len: int, vocab_size: int) -> list[int]:
    """The prompt's ids as plain ints, numpy's included.

    Raises UsageError or CapacityError unless it can be continued.
    """
    ids = _token_ids(prompt)
    if not ids:
        raise UsageError("the prompt is empty; give at least one token")
    if len(ids) >= max_len:
        raise CapacityError(
            f"the prompt has {len(ids)} tokens, which leaves no room in the {max_len} this "
            "bundle was built for; shorten it or rebuild with a larger --max-len"
        )
    _check_ids("the prompt has", ids, vocab_size)
    return ids


def items_of(value: object) -> list[Any] | None:
    """The items of a list, tuple or array; None for all else, text too."""
    is_list = isinstance(value, Sequence) or hasattr(value, "__array__")
    if isinstance(value, str | bytes) or not is_list or not _has_items(value):
        return None
    return list(cast(Iterable[Any], value))


def _has_items(value: object) -> bool:
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:  # also of an array without dimensions, which is an Iterable by its type
        return False
    return True


def whole_number(value: object) -> int | None:
    """``value`` as an int where it is a whole number of any kind; None for all else, bool too."""
    if type(value) is int:  # asking a protocol costs microseconds, and prompts have many
        return value
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    try:
        return index(value)
    except TypeError:  # an array, or a number with a fraction
        return None


def _count(name: str, value: object, *, least: int) -> int:
    number = whole_number(value)
    if number is None or number < least:
        raise UsageError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return number


def _check_ids(what: str, ids: Sequence[int], vocab_size: int) -> None:
    wrong = next((token for token in ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise UsageError(f"{what} token id {wrong}, the vocabulary ends at {vocab_size - 1}")


def _strings(name: str, value: object) -> tuple[str, ...]:
    listed: Any = (value,) if isinstance(value, str) else value
    if not _has_items(listed):
        raise UsageError(f"{name} is {value!r}, expected a string or a list of strings")
    strings = tuple(listed)
    for each in strings:
        if not isinstance(each, str) or not each:
            raise UsageError(f"{name} has {each!r} in it, expected strings that are not empty")
        if not each.isascii() and any("\ud800" <= character <= "\udfff" for character in each):
            raise UsageError(f"{name} has {each!r} in it, which is not valid UTF-8")
    return strings


def _token_ids(prompt: Sequence[int]) -> list[int]:
    tokens = items_of(prompt)
    if tokens is None:
        raise UsageError(
            f"the prompt is a {type(prompt).__name__}, expected a list of token ids; "
            "LLM.encode makes one from text"
        )
    ids = []
    for token in tokens:
        number = whole_number(token)
        if number is None:
            raise UsageError(f"the prompt has {token!r} in it, expected token ids only")
        ids.append(number)
    return ids
