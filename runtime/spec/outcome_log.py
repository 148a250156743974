"""Outcomes of rounds in a file, for ``plan`` and ``bench --replay``: what the user's own texts do.

JSON lines. The first says what was run, each further one is one row's round:

    {"format": "ssd-outcomes", "version": 1, "bundle": "demo", "mode": "ssd", "num_draft": 4,
     "num_ranks": 8, "num_branches": 8, "fallback": "jit", "temperature": 0.0}
    {"text": 0, "kind": "hit", "drafted": 4, "accepted": 2, "rank": 0, "hit": true}

Rounds of one ``text`` stand in their order; texts that ran side by side may be mixed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import TextIO

from engines.codec import DecodeError, decode, encode
from engines.errors import UsageError
from runtime.spec.fallback import Fallback, ProposalKind

FORMAT, VERSION = "ssd-outcomes", 1
WRITE = "write one with: python -m runtime bench --bundle DIR --log-outcomes FILE"
MAX_DRAFT, MAX_BRANCHES = 256, 1024
"""Histograms of that size are made from a header; larger ones are nobody's."""
MODES = ("sd", "ssd", "auto")
FALLBACKS = ("", "auto", *(each.value for each in Fallback))
LONGEST_LINE = 2**16
"""Characters; what has no line ends (``/dev/zero``) is not read to its end."""

_KINDS = {kind.name.lower(): kind for kind in ProposalKind}


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What the rounds came from.

    bundle        its name, or "" where there is none
    mode          "sd", "ssd", or "auto" where it changed
    num_draft     K, the most tokens drafted
    num_ranks     F, candidates told apart by ``rank``; 0: no ranks were noted
    num_branches  W, outcomes prepared; 0: none
    fallback      after a miss, as for ``--fallback``; "" where nothing is prepared
    temperature   of the requests, None where they differed
    """

    bundle: str
    mode: str
    num_draft: int
    num_ranks: int
    num_branches: int = 0
    fallback: str = ""
    temperature: float | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("num_draft", 1, MAX_DRAFT),
            ("num_ranks", 0, MAX_BRANCHES),
            ("num_branches", 0, MAX_BRANCHES),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}, expected {least} to {most}")
        for name, choices in (("mode", MODES), ("fallback", FALLBACKS)):
            if getattr(self, name) not in choices:
                known = ", ".join(choice for choice in choices if choice)
                raise ValueError(f"{name} is {getattr(self, name)!r}, expected one of {known}")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}, expected a number from 0 on")


@dataclass(frozen=True, slots=True)
class LoggedRound:
    """One row's round.

    text         which text of the log, from 0
    kind         where its drafts came from
    num_drafted  tokens drafted, 0 to K; 0 exactly for NONE
    accepted     of them, 0 to num_drafted
    rank         the bonus token's among the draft's candidates for its place (a rejected token is
                 none), from 0; None where it was not among the first F, or ``hit`` is None
    hit          whether the outcome had been prepared; None where nobody looked: it was the
                 text's last one, or nothing is prepared
    """

    text: int
    kind: ProposalKind
    num_drafted: int
    accepted: int
    rank: int | None
    hit: bool | None


@dataclass(frozen=True, slots=True)
class OutcomeLog:
    """A whole log."""

    header: LogHeader
    rounds: tuple[LoggedRound, ...]


class LogWriter:
    """Writes a log round by round; a context manager. Raises UsageError where it cannot.

    The file is there once the log is closed, whole; what ``with`` is left by an error, or ctrl-C,
    leaves a file of that name as it was.
    """

    def __init__(self, path: Path, header: LogHeader) -> None:
        self._path = path
        self._whole = Path(os.path.realpath(path))  # a link is followed, not replaced
        self._unfinished = self._whole.with_name(f".{os.getpid()}-{id(self)}.unfinished")
        self._file: TextIO | None = None
        try:
            self._file = self._unfinished.open("w", encoding="utf-8")
        except OSError as error:
            raise self._failure(error) from None
        record = encode(header)
        assert isinstance(record, dict)
        try:
            self._write({"format": FORMAT, "version": VERSION} | record)
        except UsageError:
            self.discard()
            raise

    def add(self, found: LoggedRound) -> None:
        """Append one round."""
        self._write(
            {
                "text": found.text,
                "kind": found.kind.name.lower(),
                "drafted": found.num_drafted,
                "accepted": found.accepted,
                "rank": found.rank,
                "hit": found.hit,
            }
        )

    def close(self) -> None:
        """Write what is left, and give the file its name."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
                self._unfinished.replace(self._whole)
            except OSError as error:
                self.discard()
                raise self._failure(error) from None

    def discard(self) -> None:
        """Leave no file behind."""
        file, self._file = self._file, None
        with suppress(OSError):
            if file is not None:
                file.close()
        with suppress(OSError):
            self._unfinished.unlink()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def _write(self, record: dict[str, object]) -> None:
        if self._file is None:
            raise UsageError(f"the outcome log {self._path} is closed")
        try:
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> UsageError:
        return UsageError(f"cannot write outcomes to {self._path}: {error.strerror or error}")


def read_log(path: Path) -> OutcomeLog:
    """A log that ``LogWriter`` wrote. Raises UsageError that names the line."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise UsageError(f"{path} is empty, expected an outcome log; {WRITE}")
    header = _header(*first)
    rounds = tuple(_round(where, record, header) for where, record in lines)
    if not rounds:
        raise UsageError(f"{path} holds no round; log more or longer texts")
    return OutcomeLog(header, rounds)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """(place, object) of each line that is not blank."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            lines = iter(lambda: file.readline(LONGEST_LINE), "")
            for number, line in enumerate(lines, start=1):
                where = f"{path}, line {number}"
                if len(line) == LONGEST_LINE:
                    raise UsageError(f"{where} is too long for an outcome log; {WRITE}")
                if line.strip():
                    yield where, _object(line, where)
    except OSError as error:
        raise UsageError(f"cannot read outcomes from {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8, expected an outcome log; {WRITE}") from None


def unrepeated(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object whose keys differ; for ``json.loads``, which keeps the last of several. Raises
    DecodeError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise DecodeError(f"field {twice!r} is there twice")
    return found


def _object(line: str, where: str) -> dict[str, object]:
    try:
        record = json.loads(line, object_pairs_hook=unrepeated)
    except DecodeError as error:
        raise UsageError(f"{where}: {error}") from None
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict):
        raise UsageError(f"{where} is not a JSON object, as in an outcome log; {WRITE}")
    return record


def _header(where: str, record: dict[str, object]) -> LogHeader:
    if record.get("format") != FORMAT:
        raise UsageError(f'{where} does not begin an outcome log ("format": "{FORMAT}"); {WRITE}')
    version = record.get("version")
    if type(version) is not int or version != VERSION:
        raise UsageError(f"{where}: version {version!r} of the format, expected {VERSION}; {WRITE}")
    # What else a later writer says about its run is no concern of a reader's.
    defaults = encode(LogHeader("", "ssd", 1, 0))
    assert isinstance(defaults, dict)
    required = {"mode", "num_draft", "num_ranks"}
    given = {field.name: record[field.name] for field in fields(LogHeader) if field.name in record}
    missing = sorted(required - set(given))
    if missing:
        raise UsageError(f"{where}: field {missing[0]} is missing")
    try:
        return decode(LogHeader, defaults | given, where)
    except DecodeError as error:
        raise UsageError(str(error)) from None


def _round(where: str, record: dict[str, object], header: LogHeader) -> LoggedRound:
    kind = _KINDS.get(str(record.get("kind")))
    if kind is None:
        raise UsageError(f"{where}: kind is {record.get('kind')!r}, expected {', '.join(_KINDS)}")
    least, most = (0, 0) if kind is ProposalKind.NONE else (1, header.num_draft)
    drafted = _number(where, record, "drafted", least, most)
    rank, hit = record.get("rank"), record.get("hit")
    if hit is not None and not isinstance(hit, bool):
        raise UsageError(f"{where}: hit is {hit!r}, expected true, false or null")
    if rank is not None and not header.num_ranks:
        raise UsageError(f"{where}: rank is {rank!r}, but by num_ranks 0 no ranks were noted")
    return LoggedRound(
        text=_number(where, record, "text", 0, None),
        kind=kind,
        num_drafted=drafted,
        accepted=_number(where, record, "accepted", 0, drafted),
        rank=None if rank is None else _number(where, record, "rank", 0, header.num_ranks - 1),
        hit=hit,
    )


def _number(where: str, record: dict[str, object], name: str, least: int, most: int | None) -> int:
    value = record.get(name)
    if type(value) is not int or value < least or (most is not None and value > most):
        wanted = f"at least {least}" if most is None else f"{least} to {most}"
        raise UsageError(f"{where}: {name} is {value!r}, expected a whole number, {wanted}")
    return value
