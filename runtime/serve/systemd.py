"""What systemd is told where it runs the server: ready, stopping, and that it is still well.

The protocol of ``sd_notify(3)``: datagrams of ``NAME=VALUE`` lines to the socket that
``NOTIFY_SOCKET`` names. Without that variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

READY, STOPPING, WELL = "READY=1", "STOPPING=1", "WATCHDOG=1"


class Systemd:
    """Of one process; ``environment`` is what it was started with."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        interval_us = environment.get("WATCHDOG_USEC", "")
        interval_s = int(interval_us) / 1e6 if interval_us.isdecimal() else 0.0
        self.interval_s = interval_s or None
        """After so long without a sign of life systemd restarts the server; None: it never does."""

    def tell(self, line: str, patience_s: float = 1.0) -> None:
        """Never fails, and waits no longer: a server that serves is worth more than one that can
        say so, and systemd may be too busy to listen."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):  # in the abstract namespace, which has no file
            address = "\0" + address[1:]
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.settimeout(patience_s)
            speaker.sendto(line.encode(), address)

    async def watch(self, is_well: Callable[[], bool]) -> None:
        """Give signs of life, twice an interval, for as long as ``is_well``; until cancelled."""
        if self.interval_s is None:
            return
        while True:
            if is_well():
                self.tell(WELL, patience_s=0.0)
            await asyncio.sleep(self.interval_s / 2)
