"""Work for tests of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from runtime.device.api import Stream


def fail_with(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def launch_all(stream: Stream, log: list[object], items: Sequence[object]) -> None:
    for item in items:
        stream.launch(partial(log.append, item), label=f"log {item}")
