"""What TensorRT says while it works, kept for our own messages instead of its stderr."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

_REASON = re.compile(r"Error Code \d+: (?P<kind>[^(]*)\((?P<text>.*?)(?:\.? In \S+ at \S+)?\)?$")
_PLACE = re.compile(r"\[[^]]*:\d+: \w+\] |\w+Exception: \S+\.cpp:\d+: (?:CHECK\(.*?\) failed\. )?")


class Messages:
    """Errors in the order they were said, since the last ``clear``."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def clear(self) -> None:
        self.errors.clear()

    @property
    def reason(self) -> str:
        """The first error as one line; what follows it is usually its consequence."""
        return readable(self.errors[0]) if self.errors else "no reason given"


@cache
def logger_for(module: Any) -> tuple[Any, Messages]:
    """The logger of one TensorRT module and where it writes.

    One for the life of the process: TensorRT keeps the first that it is given and ignores others.
    """
    messages = Messages()
    severity = module.ILogger.Severity

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, level: Any, text: str) -> None:
            if level in (severity.ERROR, severity.INTERNAL_ERROR):
                messages.errors.append(text)

    return Logger(), messages


def readable(message: str) -> str:
    """A message of TensorRT without the places in its source, on one line."""
    line = " ".join(message.split())
    match = _REASON.search(line)
    if match is None:
        return line
    text = _PLACE.sub("", match["text"])
    return f"out of memory: {text}" if match["kind"].startswith("OutOfMemory") else text
