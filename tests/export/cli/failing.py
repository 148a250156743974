"""Commands that must fail as a user's error does."""

from __future__ import annotations

import pytest

from export.cli.entry import main


def failing(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run ``python -m export ARGV``, which must fail; its message, which is one line."""
    assert main(argv) == 2
    return message(capsys)


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a command has said, to stderr and as an error."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err
