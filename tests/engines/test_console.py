from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

import pytest

from engines.console import OutputClosed, emit, prepare_streams, say


@pytest.fixture
def unread() -> TextIO:
    """A stream whose reader has gone away."""
    reading, writing = os.pipe()
    os.close(reading)
    return os.fdopen(writing, "w", encoding="ascii")


def test_a_reader_that_has_gone_away_is_told_once(
    unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter flushes once more at exit, and would end with a traceback of its own."""
    monkeypatch.setattr(sys, "stdout", unread)
    with pytest.raises(OutputClosed, match="cannot write to standard output: Broken pipe") as found:
        emit("text")
    assert found.value.errno == errno.EPIPE
    emit("more")
    unread.close()


def test_notes_that_nobody_reads_are_no_error(
    unread: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", unread)
    for _ in range(2):
        say("a note")
    unread.close()


def test_a_full_disk_has_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w", encoding="ascii") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(OutputClosed, match="No space left on device"):
            emit("text")


def test_results_and_notes_go_their_own_ways(capsys: pytest.CaptureFixture[str]) -> None:
    emit("a result")
    say("a line")
    say("no end", end="")
    assert capsys.readouterr() == ("a result", "a line\nno end")


def test_what_a_terminal_cannot_show_is_a_question_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    prepare_streams()
    emit("12 \N{GREEK SMALL LETTER MU}s")
    assert raw.getvalue() == b"12 ?s"


def test_a_stream_that_was_never_open_swallows_what_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    prepare_streams()
    emit("text")
    say("a note")
    for stream in (sys.stdout, sys.stderr):
        stream.close()
