"""A server process of one's own does not outlive who started it."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from runtime.bench.serving import server
from runtime.bench.serving.server import Server


class Interrupted(threading.Event):
    """Ctrl-C comes while somebody waits."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        raise KeyboardInterrupt


def test_an_interrupted_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    popen = subprocess.Popen

    def never_ready(_command: list[str], **options: Any) -> Any:
        started.append(popen([sys.executable, "-c", "import signal; signal.pause()"], **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", never_ready)
    monkeypatch.setattr(server, "Event", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        Server([])
    [process] = started
    assert process.poll() is not None
