"""Step times on the command line of ``plan``: what is read, and what is refused."""

from __future__ import annotations

import argparse

import pytest

from runtime.cli.plan_times import call_times
from runtime.spec.cost.times import ByTokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("15", ByTokens((1,), (0.015,))),
        ("1e-6", ByTokens((1,), (1e-9,))),
        ("8:15,128:20.2", ByTokens((8, 128), (0.015, 0.0202))),
        ("16x8:20.2, 1x8:15", ByTokens((8, 128), (0.015, 0.0202))),
        ("1x1:14.5,8:15", ByTokens((1, 8), (0.0145, 0.015))),
    ],
)
def test_step_times_are_read(text: str, expected: ByTokens) -> None:
    found = call_times(text)
    assert found.tokens == expected.tokens
    assert found.seconds_at == pytest.approx(expected.seconds_at)


NOT_TIMES = (
    *("", "fast", "0", "-1", "nan", "inf", "1e9", "8:15,", "x8:15", "8x:15", "0:15", "8:0"),
    *("8:15,2x4:16", "8:15:3", "8:15,9", "1.5:15", "8x8x8:15", "1e-300"),
)


@pytest.mark.parametrize("text", NOT_TIMES)
def test_what_is_no_step_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        call_times(text)
