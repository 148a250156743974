"""A server of one's own, in a process of its own."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Thread

from engines.errors import UsageError

START_S, STOP_S = 600.0, 60.0
_READY = re.compile(r"^serving .* at (http://\S+) ")


class Server:
    """``python -m runtime serve`` with these arguments, at a free port of this machine."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Returns when it is ready. Raises UsageError with its own words where it did not start."""
        command = [sys.executable, "-m", "runtime", "serve", "--port", "0", *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="replace",
        )  # fmt: skip
        self.url = ""
        self._lines: deque[str] = deque(maxlen=50)
        self._is_settled = Event()
        self._reader = Thread(target=self._read, name="server's words", daemon=True)
        self._reader.start()
        try:
            self._is_settled.wait(START_S)
        except BaseException:  # ctrl-C: nobody has this object yet who could close it
            self.close()
            raise
        if not self.url:
            self.close()
            words = self._lines[-1] if self._lines else "it said nothing"
            raise UsageError(f"the server did not start: {words.removeprefix('error: ')}")

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as words:
            for line in words:
                self._lines.append(line.strip())
                found = _READY.match(line)
                if found:
                    self.url = found[1]
                    self._is_settled.set()
        self._is_settled.set()  # it has ended

    def terminate(self) -> None:
        """SIGTERM: it is to finish what runs, and end."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self) -> int | None:
        """Its exit code; None where it does not end."""
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End it, whatever it is doing. Idempotent."""
        if self._process.poll() is None:
            self.terminate()
            if self.wait() is None:
                self._process.kill()
                self._process.wait()
        self._reader.join(STOP_S)


@contextmanager
def server_of(arguments: Sequence[str]) -> Iterator[Server]:
    """A server as long as the body runs."""
    server = Server(arguments)
    try:
        yield server
    finally:
        server.close()
