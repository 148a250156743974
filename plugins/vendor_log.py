"""What TensorRT says while it works, kept for our own messages instead of its stderr.

TensorRT and TensorRT-RTX keep the first logger that a process gives them and ignore others, so a
module has one for good, which those who build and those who run engines share.
"""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from threading import get_ident
from typing import Any

_MOST = 256
_REASON = re.compile(r"Error Code \d+: (?P<kind>[^(]*)\((?P<text>.*?)(?:\.? In \S+ at \S+)?\)?$")
_PLACE = re.compile(
    r"\[[^]]*:\d+: \w+\] |\w+Exception: \S+\.cpp:\d+: (?:CHECK\(.*?\) failed\. )?|^In \S+ at \S+ "
)


class Messages:
    """The last errors of a module, in the order they were said, and on which threads."""

    def __init__(self) -> None:
        self._said: deque[tuple[int, str]] = deque(maxlen=_MOST)

    def add(self, text: str) -> None:
        self._said.append((get_ident(), text))

    def clear(self) -> None:
        self._said.clear()

    def clear_here(self) -> None:
        """Forget what was said on the calling thread: engines on other threads may still ask."""
        here = get_ident()
        for said in list(self._said):
            if said[0] == here:
                self._said.remove(said)

    @property
    def errors(self) -> list[str]:
        return [text for _, text in list(self._said)]

    @property
    def errors_here(self) -> list[str]:
        """Those of the calling thread alone."""
        here = get_ident()
        return [text for thread, text in list(self._said) if thread == here]

    @property
    def reason(self) -> str:
        """The first error as one line; what follows it is usually its consequence."""
        errors = self.errors
        return readable(errors[0]) if errors else "no reason given"

    @property
    def reason_here(self) -> str:
        """As ``reason``, of the calling thread; of all threads where that one heard nothing."""
        errors = self.errors_here
        return readable(errors[0]) if errors else self.reason


@cache
def logger_for(module: Any) -> tuple[Any, Messages]:
    """The logger of one TensorRT module and where it writes; one for the life of the process."""
    messages = Messages()
    severity = module.ILogger.Severity

    class Logger(module.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            module.ILogger.__init__(self)

        def log(self, level: Any, text: str) -> None:
            if level in (severity.ERROR, severity.INTERNAL_ERROR):
                messages.add(text)

    return Logger(), messages


def readable(message: str) -> str:
    """A message of TensorRT without the places in its source, on one line."""
    line = " ".join(message.split())
    match = _REASON.search(line)
    if match is None:
        return line
    text = _PLACE.sub("", match["text"])
    if text.startswith("(") and text.endswith(")"):  # all that is left after a place
        text = text[1:-1]
    return f"out of memory: {text}" if match["kind"].startswith("OutOfMemory") else text
