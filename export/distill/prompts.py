"""Files of prompts: a user's own, and evaluation files of Spec-Bench's shape."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError


@dataclass(frozen=True, slots=True)
class Question:
    """One line of an evaluation file."""

    category: str
    turns: tuple[str, ...]  # what the user says, turn by turn; at least one


def read_prompts(path: Path) -> list[str]:
    """The user's prompts: a text file with one a line, or .jsonl with objects that have "prompt"
    (text) or "turns" (texts, of which the first counts). Raises UsageError naming the line."""
    if path.suffix != ".jsonl":
        lines = _text(path, "--prompts").splitlines()
        found = [line.strip() for line in lines if line.strip()]
    else:
        found = []
        for where, value in _objects(path, "--prompts"):
            turns = _turns(value)
            prompt = value.get("prompt") or (turns[0] if turns else None)
            if not isinstance(prompt, str):
                raise UsageError(f'{where}: expected "prompt": TEXT or "turns": [TEXT, ...]')
            found.append(prompt)
    if not found:
        raise UsageError(f"--prompts {path}: holds no prompt")
    return found


def read_questions(path: Path) -> list[Question]:
    """Lines with "category" and "turns". Raises UsageError naming the line."""
    found = []
    for where, value in _objects(path, "--evaluate"):
        category, turns = value.get("category"), _turns(value)
        if not isinstance(category, str) or not turns:
            raise UsageError(f'{where}: expected "category": TEXT and "turns": [TEXT, ...]')
        found.append(Question(category, tuple(turns)))
    if not found:
        raise UsageError(f"--evaluate {path}: holds no question")
    return found


def _turns(value: dict[str, object]) -> list[str] | None:
    turns = value.get("turns")
    if isinstance(turns, list) and turns and all(isinstance(turn, str) for turn in turns):
        return turns
    return None


def _objects(path: Path, option: str) -> Iterator[tuple[str, dict[str, object]]]:
    for number, line in enumerate(_text(path, option).splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{option} {path}:{number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{where}: no JSON ({error})") from None
        if not isinstance(value, dict):
            raise UsageError(f"{where}: expected one JSON object a line")
        yield where, value


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise UsageError(f"{option} {path}: {reason}") from None
