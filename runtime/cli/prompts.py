"""Reads prompts: one from the command line or stdin, many from a file."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import BinaryIO

from engines.errors import UsageError

MAX_BYTES = 64 * 2**20
"""Of prompts read at once; the longest context holds far less."""


def one_prompt(argument: str) -> str:
    """The value of ``--prompt``; ``-`` reads stdin, without the newline a shell puts at its end.

    Raises UsageError for a prompt that is empty or not UTF-8.
    """
    if argument == "-":
        # None where the shell closed it (`<&-`).
        data = _read_all(sys.stdin.buffer, "the prompt on stdin") if sys.stdin is not None else b""
        text = _decode(data, "the prompt on stdin")
        text = text.removesuffix("\n").removesuffix("\r")
    else:
        # The bytes of an argument that are not UTF-8 reach Python as lone surrogates.
        text = _decode(argument.encode("utf-8", "surrogateescape"), "the prompt")
    if not text.strip():
        raise UsageError("the prompt is empty; give some text with --prompt")
    return text


def many_prompts(path: Path | None, limit: int | None) -> list[str]:
    """The first ``limit`` prompts of a .txt or .jsonl file, or of the built-in dozen.

    A .txt file has one prompt a line, a .jsonl file one object a line: its ``prompt``, or the
    first of its ``turns`` (Spec-Bench's form). Empty lines are skipped. Raises UsageError.
    """
    if path is None:
        source = files("runtime") / "prompts" / "default.txt"
        text, where, is_jsonl = source.read_text(encoding="utf-8"), "the built-in prompts", False
    else:
        text, where, is_jsonl = _read(path), str(path), path.suffix == ".jsonl"
    # Not splitlines: it also cuts at separators that JSON allows inside a string.
    numbered = enumerate(text.replace("\r\n", "\n").split("\n"), start=1)
    lines = [(i, line) for i, line in numbered if line.strip()]
    if not lines:
        raise UsageError(f"{where} holds no prompt")
    chosen = lines[:limit]
    return [_from_json(line, f"{where}, line {i}") if is_jsonl else line for i, line in chosen]


def shortened(prompt: str, width: int = 60) -> str:
    """A prompt as one short line."""
    line = " ".join(prompt.split())
    return line if len(line) <= width else line[: width - 3] + "..."


def _read(path: Path) -> str:
    if path.suffix not in (".txt", ".jsonl"):
        raise UsageError(f"--prompts {path} is neither .txt (a prompt a line) nor .jsonl")
    try:
        with path.open("rb") as file:
            data = _read_all(file, f"--prompts {path}")
    except OSError as error:
        raise UsageError(f"cannot read --prompts {path}: {error.strerror}") from None
    return _decode(data, str(path))


def _read_all(file: BinaryIO, what: str) -> bytes:
    """All bytes of a stream that ends (``/dev/zero`` and ``yes |`` do not)."""
    data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise UsageError(f"{what} is longer than {MAX_BYTES >> 20} MiB; give a shorter one")
    return data


def _decode(data: bytes, what: str) -> str:
    try:
        return data.decode("utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{what} is not UTF-8 (byte {error.start} is 0x{data[error.start]:02x}); "
            "convert it to UTF-8 first"
        ) from None


def _from_json(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON ({error})") from None
    match record:
        case {"prompt": str(text)} | {"turns": [str(text), *_]} if text.strip():
            return text
    raise UsageError(f'{where} has no "prompt" and no "turns" with some text in it')
