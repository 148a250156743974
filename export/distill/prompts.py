"""Files of prompts: a user's own, and evaluation files of Spec-Bench's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError

ALL = "all"
"""What the figures of all categories are called."""


@dataclass(frozen=True, slots=True)
class Question:
    """One line of an evaluation file."""

    category: str
    turns: tuple[str, ...]  # what the user says, turn by turn; at least one


def read_prompts(path: Path) -> list[str]:
    """The user's prompts: a text file with one a line, or .jsonl with objects that have "prompt"
    (text) or "turns" (texts, of which the first counts). Raises UsageError naming the line."""
    if path.suffix != ".jsonl":
        found = [line.strip() for line in _lines(path, "--prompts") if line.strip()]
    else:
        found = []
        for where, value in _objects(path, "--prompts"):
            turns = _turns(value)
            prompt = value.get("prompt") or (turns[0] if turns else None)
            if not isinstance(prompt, str) or not prompt.strip():
                raise UsageError(f'{where}: expected "prompt": TEXT or "turns": [TEXT, ...]')
            _check_unicode(where, prompt)
            found.append(prompt)
    if not found:
        raise UsageError(f"--prompts {path}: holds no prompt")
    return found


def read_questions(path: Path) -> list[Question]:
    """Lines with "category" and "turns". Raises UsageError naming the line."""
    found = []
    for where, value in _objects(path, "--evaluate"):
        category, turns = value.get("category"), _turns(value)
        if not isinstance(category, str) or not turns or not turns[0].strip():
            raise UsageError(f'{where}: expected "category": TEXT and "turns": [TEXT, ...]')
        _check_unicode(where, category, *turns)
        if category == ALL or not category.isprintable():
            raise UsageError(
                f"{where}: a category {category!r}; expected one line of text, and another name "
                f"than {ALL!r}, which is what the figures of all categories are called"
            )
        found.append(Question(category, tuple(turns)))
    if not found:
        raise UsageError(f"--evaluate {path}: holds no question")
    return found


def _turns(value: dict[str, object]) -> list[str] | None:
    turns = value.get("turns")
    if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
        return turns
    return None


def _check_unicode(where: str, *texts: str) -> None:
    # JSON may escape half a surrogate pair, which no tokenizer takes.
    for text in texts:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise UsageError(
                f"{where}: {half} is half of a surrogate pair; write the whole character"
            ) from None


def _objects(path: Path, option: str) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in enumerate(_lines(path, option), start=1):
        if not line.strip():
            continue
        where = f"{option} {path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where}: no JSON ({error})") from None
        except RecursionError:
            raise UsageError(f"{where}: JSON that is nested too deeply") from None
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected one JSON object a line")
        yield where, value


def _lines(path: Path, option: str) -> list[str]:
    try:
        # Not splitlines(): U+2028, U+0085 and form feeds may stand inside a line.
        return path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(f"{option} {path}: {reason}") from None
