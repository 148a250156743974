"""A fleet of two replicas in processes of its own, and what tests have to know of these."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engines.errors import UsageError
from runtime.bench.serving.server import Server, server_of

NUM_STARTS = 3
"""Ray gives a machine 30 s to start its processes in, which a busy one misses."""


@contextmanager
def fleet_of(arguments: list[str]) -> Iterator[Server]:
    """``serve --ray`` with a temporary folder and without tokens of Ray's own in the home."""
    with (
        # A short name: sockets are in it, and the system allows them 107 characters.
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_worker_niceness": "0",  # 15, and on a busy machine nothing starts
        }.items():
            patch.setenv(name, value)
        with _started(["--ray", *arguments]) as server:
            yield server


@contextmanager
def _started(arguments: list[str]) -> Iterator[Server]:
    with ExitStack() as stack:
        for left in reversed(range(NUM_STARTS)):
            try:
                server = stack.enter_context(server_of(arguments))
                break
            except UsageError as error:
                if not left or "cannot start a cluster" not in str(error):
                    raise
        yield server


def descendants() -> dict[int, str]:
    """Process id -> command line of all that this process, and what it started, has started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has just ended
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(folder.name)] = int(parent)
    found: dict[int, str] = {}
    level = {os.getpid()}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        for pid in level:
            try:
                found[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    return found


def replicas() -> list[int]:
    """The processes that hold engines."""
    return [
        pid
        for pid, command in descendants().items()
        if command.startswith("ray::ServeReplica:ssd-trt:Engines")
    ]


def cluster_address() -> str:
    """As ``--ray-address`` takes it."""
    for command in descendants().values():
        found = re.search(r"--gcs-address=(\S+)", command)
        if found:
            return found[1]
    raise AssertionError("there is no cluster")
