"""What a waiting user is told, on a terminal and in a file."""

from __future__ import annotations

import sys

import pytest

from runtime.cli.console import busy, progress


@pytest.mark.parametrize(("total", "num_lines"), [(3, 3), (12, 12), (20, 20), (500, 10)])
def test_every_step_of_a_few_has_its_line(
    capsys: pytest.CaptureFixture[str], total: int, num_lines: int
) -> None:
    """Of 12, the lines went 6, 8, 9: as if some had been left out."""
    with progress("answers", total, quiet=False) as tick:
        for done in range(1, total + 1):
            tick(done, "fine")
    lines = capsys.readouterr().err.splitlines()
    assert abs(len(lines) - num_lines) <= 1
    assert lines[-1] == f"answers: {total} of {total} (fine)"
    if total <= 20:
        assert len(lines) == total


def test_a_line_said_meanwhile_stands_alone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with busy("loading", quiet=False, plain=False) as announce:
        announce("measuring")
    assert capsys.readouterr().err == "measuring\n"
    with busy("loading", quiet=True) as announce:
        announce("measuring")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with busy("loading", quiet=False) as announce:
        announce("measuring")
    assert "\r\x1b[2Kmeasuring\nloading ..." in capsys.readouterr().err
