"""Step times as they are written on a command line: ``15`` or ``1x8:15,16x8:20.2``."""

from __future__ import annotations

import argparse
import math
import re

from runtime.spec.cost.times import LONGEST_MS, SHORTEST_MS, ByTokens

FORM = (
    "milliseconds of a call, or SIZE:MS points with commas between, SIZE being the call's tokens "
    "or ROWSxTOKENS"
)
_SIZE = re.compile(r"([0-9]{1,7})(?:x([0-9]{1,7}))?")


def call_times(text: str) -> ByTokens:
    """``15``: every call takes 15 ms. ``8:15,128:20.2``: one of 8 tokens 15 ms, one of 128 20.2 ms,
    straight between them; ``16x8`` is 128 tokens, 16 rows of 8."""
    if ":" not in text:
        return ByTokens((1,), (_seconds(text, text),))
    points: dict[int, float] = {}
    for part in text.split(","):
        size, separator, ms = part.strip().partition(":")
        match = _SIZE.fullmatch(size.strip())
        tokens = int(match[1]) * int(match[2] or 1) if match else 0
        if not separator or tokens < 1:
            raise argparse.ArgumentTypeError(f"{text!r}: {part!r} is no SIZE:MS; give {FORM}")
        if tokens in points:
            raise argparse.ArgumentTypeError(
                f"{text!r} has two times for a call of {tokens} tokens"
            )
        points[tokens] = _seconds(ms, text)
    sizes = tuple(sorted(points))
    return ByTokens(sizes, tuple(points[size] for size in sizes))


def _seconds(text: str, whole: str) -> float:
    try:
        ms = float(text)
    except ValueError:
        ms = math.nan
    if not SHORTEST_MS <= ms < LONGEST_MS:
        raise argparse.ArgumentTypeError(
            f"{whole!r}: {text!r} is no time from {SHORTEST_MS:g} to {LONGEST_MS:g} ms; give {FORM}"
        )
    return ms / 1e3
