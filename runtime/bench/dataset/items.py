"""Reading a data set: JSON lines in Spec-Bench's form, or in another that is common."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from runtime.cli.prompts import MAX_BYTES

NO_CATEGORY, OVERALL = "all", "overall"
SHAPES = '"turns", "prompt", "question", "instruction", "messages" or "conversations"'


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a data set: its first turn."""

    category: str
    text: str
    line: int


def read_items(path: Path, limit: int | None = None) -> list[Item]:
    """The prompts of a file in its order, the first ``limit`` of each category.

    An object a line: ``category`` (else all are of one), and the text as ``turns`` (the first
    counts), ``prompt``, ``question`` or ``instruction``, or as the first thing that a user says in
    ``messages`` or ``conversations``. Raises UsageError that names the line.
    """
    taken: Counter[str] = Counter()
    items = []
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{where} is not JSON ({error.msg}, column {error.colno})") from None
        except (ValueError, RecursionError):
            raise UsageError(
                f"{where} is not JSON that can be read (too deep, or a number of too many digits)"
            ) from None
        text = first_turn(record)
        if text is None or not text.strip():
            raise UsageError(f"{where} has no text in {SHAPES}")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError(f"{where} has half a character (a lone surrogate) in its text")
        category = record.get("category", NO_CATEGORY)
        if not isinstance(category, str) or not category.strip() or not category.isprintable():
            raise UsageError(f"{where}: category is {category!r}, expected a name on one line")
        if category == OVERALL:
            raise UsageError(
                f"{where}: category {OVERALL!r} means all prompts together; give it another name"
            )
        taken[category] += 1
        if limit is None or taken[category] <= limit:
            items.append(Item(category, text, number))
    if not items:
        raise UsageError(f"{path} holds no prompt")
    return items


def first_turn(record: object) -> str | None:
    """What the user says first; None where nothing is."""
    match record:
        case (
            {"turns": [str(text), *_]}
            | {"prompt": str(text)}
            | {"question": str(text)}
            | {"instruction": str(text)}
        ):
            return text
        case {"messages": [*messages]} | {"conversations": [*messages]}:
            return next(filter(None, map(_said_by_user, messages)), None)
    return None


def _said_by_user(message: object) -> str | None:
    match message:
        case {"role": "user", "content": str(text)} | {"from": "human", "value": str(text)}:
            return text
    return None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, numbered from 1."""
    if path.suffix != ".jsonl":
        raise UsageError(f"--dataset {path} is not a .jsonl file (an object a line)")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)  # not all of it: /dev/zero has no end
    except OSError as error:
        raise UsageError(f"cannot read --dataset {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"--dataset {path} is longer than {MAX_BYTES >> 20} MiB; shorten it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"--dataset {path} is not UTF-8; convert it to UTF-8 first") from None
    # Not splitlines: it also cuts at separators that JSON allows inside a string.
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if line.strip():
            yield number, line
