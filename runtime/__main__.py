"""``python -m runtime``: see ``python -m runtime --help``."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> int:
    """Import and run the command line; ctrl-C is heard from here on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from runtime.cli.entry import main

        return main()
    except KeyboardInterrupt:  # it came while that was imported
        return 130


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """The first ctrl-C closes the model in good order; a second one does not wait for that."""
    signal.signal(signal.SIGINT, lambda _signal, _frame: os._exit(130))
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run())
