"""What systemd is told: it restarts a server by it, and starts what comes after."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.serve.systemd import Systemd

ROOT = Path(__file__).parents[3]


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """systemd's end of the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


def address_of(manager: socket.socket) -> str:
    return str(manager.getsockname())


def heard(manager: socket.socket) -> str:
    return manager.recv(1000).decode()


def test_a_server_says_when_it_serves_that_it_is_well_and_that_it_stops(
    manager: socket.socket,
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runtime.serve.fake_server", "5"],
        cwd=ROOT,
        env={**os.environ, "NOTIFY_SOCKET": address_of(manager), "WATCHDOG_USEC": "20000"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert heard(manager) == "READY=1"
        assert process.stderr is not None
        found = re.match(r"serving fake at http://127.0.0.1:(\d+)", process.stderr.readline())
        assert found is not None
        socket.create_connection(("127.0.0.1", int(found[1])), 5).close()
        assert [heard(manager), heard(manager)] == ["WATCHDOG=1"] * 2
        process.send_signal(signal.SIGTERM)
        while (line := heard(manager)) == "WATCHDOG=1":
            pass
        assert line == "STOPPING=1"
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_server_whose_engines_failed_gives_no_sign_of_life(manager: socket.socket) -> None:
    """It gets no requests any more, so nothing but a restart would bring it back."""
    systemd = Systemd({"NOTIFY_SOCKET": address_of(manager), "WATCHDOG_USEC": "2000"})
    is_well = iter([False, True])

    async def run() -> None:
        asked = asyncio.Event()

        def ask() -> bool:
            answer = next(is_well, None)
            if answer is None:
                asked.set()
            return bool(answer)

        watching = asyncio.create_task(systemd.watch(ask))
        await asyncio.wait_for(asked.wait(), 20)
        watching.cancel()

    asyncio.run(run())
    manager.setblocking(False)
    assert heard(manager) == "WATCHDOG=1"
    with pytest.raises(BlockingIOError):
        heard(manager)


def test_an_address_in_the_abstract_namespace_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("")  # the system chooses a name
        name = listening.getsockname()
        assert name.startswith(b"\0")
        listening.settimeout(20)
        Systemd({"NOTIFY_SOCKET": "@" + name[1:].decode()}).tell("READY=1")
        assert heard(listening) == "READY=1"


@pytest.mark.parametrize(
    "environment", [{}, {"NOTIFY_SOCKET": "/nowhere/at/all"}, {"WATCHDOG_USEC": "0"}]
)
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    """An interval of nothing would be a loop that never rests."""
    systemd = Systemd(environment)
    systemd.tell("READY=1")
    assert systemd.interval_s is None
    asyncio.run(systemd.watch(lambda: pytest.fail("nobody asked")))
