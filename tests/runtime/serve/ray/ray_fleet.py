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

NUM_STARTS = 5
"""Ray gives a machine 30 s to start its processes in, which a busy one misses."""
PATIENCE = {
    "RAY_worker_niceness": "0",  # 15, and on a busy machine nothing starts
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_health_check_failure_threshold": "20",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    # Ray Serve asks a replica for its load, and takes the next where none is known in time (0.1 s).
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "60",
    "RAY_SERVE_MAX_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "60",
}
"""What a busy machine takes longer for than Ray's own limits is no fault that tests look for."""


@contextmanager
def fleet_of(arguments: list[str]) -> Iterator[Server]:
    """``serve --ray`` with a temporary folder and without tokens of Ray's own in the home."""
    with (
        # A short name: sockets are in it, and the system allows them 107 characters.
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {
            **PATIENCE,
            "RAY_TMPDIR": folder,
            "RAY_AUTH_MODE": "disabled",
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
