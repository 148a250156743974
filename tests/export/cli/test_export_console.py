from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import UsageError
from export.cli.console import Parser
from export.cli.entry import main


@pytest.mark.parametrize(
    "argv",
    [
        ["build", "--target", "x", "--out", ""],
        ["distill", "--target", "x", "--out", ""],
        ["inspect", ""],
        ["verify", ""],
        ["bench", ""],
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """``--out "$UNSET"``: the error spoke of whatever the current folder held."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "'' names no place; write . for the current folder" in err
    assert f"(see python -m export {argv[0]} --help)" in err
    assert err.count("\n") == 1


def test_other_paths_are_taken_as_they_are() -> None:
    parser = Parser("program", "what it does")
    parser.add_argument("--out", type=Path)
    for text in (".", " ", "a/b", "~"):
        assert parser.parse_args(["--out", text]).out == Path(text)
    assert parser.parse_args([]).out is None
    with pytest.raises(UsageError, match=r"--out: '' names no place.* \(see program --help\)"):
        parser.parse_args(["--out", ""])
