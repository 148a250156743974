"""Batch files: a JSON object a line, as OpenAI's batch API reads and writes them.

asked     {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
answered  {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id": ...,
          "body": {...}}, "error": null}
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from engines.errors import UsageError

URLS = ("/v1/chat/completions", "/v1/completions")
PARTIAL = ".partial"
"""Appended to the name of a file that is not complete."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One line. ``fault`` says why it cannot even be asked."""

    custom_id: str
    url: str
    body: dict[str, Any]
    fault: str | None = None

    @property
    def digest(self) -> str:
        """Alike for the same request in another run."""
        asked = json.dumps([self.url, self.body], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of one line."""

    custom_id: str
    status: int
    request_id: str
    body: dict[str, Any]

    @property
    def is_good(self) -> bool:
        return self.status == 200

    def as_line(self) -> str:
        record = {
            "id": f"batch_req_{secrets.token_hex(12)}",
            "custom_id": self.custom_id,
            "response": {
                "status_code": self.status,
                "request_id": self.request_id,
                "body": self.body,
            },
            "error": None,
        }
        return json.dumps(record) + "\n"


def refused(asked: Asked) -> Answered:
    """The answer to a line with a fault, in the shape of the server's own refusals."""
    error = {
        "message": asked.fault,
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_line",
    }
    return Answered(asked.custom_id, 400, "", {"error": error})


def read_asked(path: Path) -> list[Asked]:
    """The lines of a file; empty ones are skipped. What is wrong with one line is its own affair.

    Raises UsageError for a file that cannot be read or holds nothing, and for lines that nobody
    could find the answer of: no JSON object, no ``custom_id``, or one that another line has.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start})") from None
    # Not splitlines: it also cuts at separators that JSON allows inside a string.
    lines = [(i, each) for i, each in enumerate(text.split("\n"), start=1) if each.strip()]
    if not lines:
        raise UsageError(f"{path} holds no request")
    found: dict[str, int] = {}
    asked = []
    for number, line in lines:
        where = f"{path}, line {number}"
        each = _read_line(line, where)
        first = found.setdefault(each.custom_id, number)
        if first != number:
            raise UsageError(f"{where}: custom_id {each.custom_id!r} is line {first}'s already")
        asked.append(each)
    return asked


def _read_line(line: str, where: str) -> Asked:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} is not JSON ({error})") from None
    name = record.get("custom_id") if isinstance(record, dict) else None
    if not isinstance(name, str) or not name:
        raise UsageError(f'{where} has no "custom_id", by which its answer is found')
    body, url = record.get("body"), record.get("url")
    fault = None
    if record.get("method", "POST") != "POST":
        fault = f"method is {record['method']!r}; requests are POST"
    elif url not in URLS:
        fault = f"url is {url!r}; served are {' and '.join(URLS)}"
    elif not isinstance(body, dict):
        fault = "body is no object"
    elif body.get("stream"):
        fault = "stream is true; answers of a batch are whole, drop it"
    if fault is not None:
        return Asked(name, "", {}, fault)
    return Asked(name, str(url), body)


class Answers:
    """The file that answers are written into: beside ``path`` while it is not complete, each line
    as soon as it is there, and under its name once all are, in the order of the requests.

    A run that was interrupted is gone on with: what was answered well is not asked again.
    """

    def __init__(self, path: Path, asked: list[Asked]) -> None:
        """Raises UsageError where the folder cannot be written to, or ``path`` exists."""
        self.path = path
        self._require_free()
        self.partial = path.with_name(path.name + PARTIAL)
        self._asked = asked
        self._digests = {each.custom_id: each.digest for each in asked}
        try:
            self._file: TextIO = self.partial.open("a+", encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"cannot write {self.partial}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"another run writes {self.partial}; let it end first") from None
        try:
            self._require_free()
        except UsageError:  # a run that ended since we looked, and took its own partial file away
            self.partial.unlink(missing_ok=True)
            self._file.close()
            raise
        self._file.seek(0)
        before = self._file.read()
        self._lines = dict(self._known(before))
        if not before.endswith("\n"):
            self._file.write("\n")  # behind what the interruption cut off

    @property
    def num_known(self) -> int:
        """Lines that an earlier run has answered."""
        return len(self._lines)

    @property
    def left(self) -> list[Asked]:
        """Lines that are still to be answered."""
        return [each for each in self._asked if each.custom_id not in self._lines]

    def add(self, answered: Answered) -> None:
        """Keep an answer, whatever happens next."""
        line = answered.as_line()
        self._file.write(f"{self._digests[answered.custom_id]} {line}")
        self._file.flush()
        self._lines[answered.custom_id] = line

    def finish(self) -> None:
        """All are there: write them in order, and take the partial file away."""
        ordered = self.partial.with_name(self.partial.name + ".ordered")
        with ordered.open("w", encoding="utf-8") as file:
            for each in self._asked:
                file.write(self._lines[each.custom_id])
            file.flush()
            os.fsync(file.fileno())
        ordered.replace(self.path)
        self.partial.unlink()
        self._file.close()  # last: with it goes the lock

    def _require_free(self) -> None:
        if self.path.exists():
            raise UsageError(f"{self.path} exists; name another file, or remove it first")

    def close(self) -> None:
        """Leave what there is for the next run. Idempotent."""
        self._file.close()

    def _known(self, before: str) -> Iterator[tuple[str, str]]:
        """Of a partial file, where each answer stands behind the digest of its request."""
        for line in before.split("\n"):
            digest, _, answer = line.partition(" ")
            try:
                record = json.loads(answer)
                name, status = record["custom_id"], record["response"]["status_code"]
            except (ValueError, TypeError, KeyError):
                continue  # cut off; it is asked again
            if self._digests.get(name) == digest and status == 200:
                yield name, answer + "\n"
