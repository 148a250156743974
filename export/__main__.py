"""``python -m export``: see ``python -m export --help``."""

import signal
import sys
from types import FrameType
from typing import NoReturn


def run() -> int:
    """Import and run the command line; ctrl-C is heard from here on."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from export.cli.entry import main

        return main()
    except KeyboardInterrupt:  # it came while that was imported
        return 130


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    """The first ctrl-C is an exception; further ones must not cut short the cleaning up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(run())
