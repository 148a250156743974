from __future__ import annotations

import pytest

from engines.errors import as_line


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("two\nlines \t here", "two lines here"),
        ("naïve 😀 日本", "naïve 😀 日本"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("name \udcff", "name \\udcff"),
        ("a\u2028b", "a b"),
    ],
)
def test_a_message_is_one_line_that_a_terminal_does_not_obey(message: str, line: str) -> None:
    """Manifests come from others: one could clear the screen, or colour it, with its error."""
    assert as_line(message) == line


def test_a_long_message_is_cut() -> None:
    assert as_line("x" * 9999, longest=10) == "x" * 10 + "..."
