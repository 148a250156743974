"""A grammar as a request names it: text, not compiled yet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from engines.errors import UsageError


class GrammarKind(StrEnum):
    """What ``Grammar.source`` is written in."""

    JSON_SCHEMA = "JSON schema"
    REGEX = "regular expression"
    LARK = "grammar"
    CHOICE = "choice"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer has to be, from its first to its last character. Make it with one of the
    methods below; they raise UsageError for what is no such thing at all. Whether it can be
    compiled is known when a request asks for it.

    ``source`` has one string; of a CHOICE, each of its answers.
    """

    kind: GrammarKind
    source: tuple[str, ...]

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, object]) -> Grammar:
        """JSON that the schema describes; a string is JSON itself. Keywords that cannot be
        enforced are refused when it is compiled."""
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the JSON schema is not JSON ({error})") from None
        if not isinstance(schema, Mapping):
            raise UsageError(f"the JSON schema is a {type(schema).__name__}, expected an object")
        try:
            text = json.dumps(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the JSON schema is not JSON ({error})") from None
        return cls(GrammarKind.JSON_SCHEMA, (text,))

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that the whole pattern matches; Rust's syntax, without look-around."""
        return cls(GrammarKind.REGEX, (_text("the regular expression", pattern),))

    @classmethod
    def lark(cls, grammar: str) -> Grammar:
        """Text that the rule ``start`` derives; Lark's syntax, as llguidance has it."""
        return cls(GrammarKind.LARK, (_text("the grammar", grammar),))

    @classmethod
    def choice(cls, answers: Sequence[str]) -> Grammar:
        """One of the answers, word for word."""
        if isinstance(answers, str) or not isinstance(answers, Sequence) or not answers:
            raise UsageError(f"choice is {answers!r}, expected a list of answers")
        return cls(
            GrammarKind.CHOICE, tuple(_text("an answer of choice", each) for each in answers)
        )


def _text(what: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{what} is {value!r}, expected some text")
    return value
