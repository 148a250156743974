"""A headless Chromium, driven by its DevTools protocol over two pipes: no driver, no socket."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_S = 60.0


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. Use ``browser``."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._unread = b""
        self._num_sent = 0
        self._session: str | None = None
        self._is_loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.complaints: list[str] = []
        """What the console was told of as an error, refusals by the policy included."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command's result."""
        self._num_sent += 1
        message = {"id": self._num_sent, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._num_sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._hear(answer)

    def _read(self) -> Any:
        while b"\0" not in self._unread:
            part = os.read(self._back, 1 << 16)
            assert part, "the browser has gone"
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _hear(self, event: Any) -> None:
        if event.get("method") == "Page.loadEventFired":
            self._is_loaded = True
        elif event.get("method") == "Log.entryAdded":
            entry = event["params"]["entry"]
            if entry["level"] == "error":
                self.complaints.append(entry["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(event["params"]["exceptionDetails"]))

    def open(self, url: str) -> None:
        self._is_loaded = False
        self.call("Page.navigate", url=url)
        while not self._is_loaded:
            self._hear(self._read())

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """The expression's value, once it is true."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            value = self.call(
                "Runtime.evaluate",
                expression=f"new Promise(done => setTimeout(() => done({script}), 20))",
                returnByValue=True,
                awaitPromise=True,
            )["result"].get("value")
            if value:
                return value
        raise AssertionError(f"never came true: {script}\n{self.ask('document.body.innerText')}")

    def text(self, selector: str) -> str:
        return str(self.ask(f"document.querySelector({json.dumps(selector)}).textContent"))

    def click(self, selector: str) -> None:
        self.ask(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, selector: str, words: str) -> None:
        """As a keyboard does, into a field that gets the focus first."""
        self.ask(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=words)

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}[key]
        more = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, **(more if kind == "keyDown" else {}),
            )  # fmt: skip

    def resize(self, width: int, height: int, *, is_dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, in ``folder``."""
    program = find_browser()
    assert program is not None
    theirs_in, to = os.pipe()
    back, theirs_out = os.pipe()
    # Chromium reads 3 and writes 4; what is moved there must not lie there already.
    high = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, 10) for each in (theirs_in, theirs_out)]
    null = os.open(os.devnull, os.O_RDWR)
    command = [
        program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}",
        "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
        "--disable-background-networking", "--no-proxy-server",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]  # fmt: skip
    duplicates = [(high[0], 3), (high[1], 4), (null, 0), (null, 1), (null, 2)]
    process = os.posix_spawn(
        program,
        command,
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, *each) for each in duplicates],
        setpgroup=0,
    )
    for each in (theirs_in, theirs_out, *high, null):
        os.close(each)
    try:
        yield Browser(to, back)
    finally:
        with suppress(BrokenPipeError):  # killed, it would leave its temporary folder
            os.write(to, b'{"id": 0, "method": "Browser.close"}\0')
        os.waitpid(process, 0)
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        os.close(to)
        os.close(back)
