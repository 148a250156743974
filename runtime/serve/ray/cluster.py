"""The cluster that a command runs on: one that is there, or one of this machine's own."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from math import inf
from typing import Any

from engines.errors import UsageError
from runtime.serve.ray.options import FleetOptions, resources_of
from runtime.serve.ray.reports import reason_of

OBJECT_STORE_BYTES = 128 << 20
"""Of a cluster of our own: what travels is small."""
ENVIRONMENT = {
    # Ray's reports to its makers, which it sends unless it is told not to.
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray Serve gives its proxy 5 s to start, ends it where it was not ready, and starts another:
    # on a busy machine that has no end.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "600",
}
"""Of a cluster of our own, whose processes inherit it; what is set already stays."""


OVERRIDE = "RAY_OVERRIDE_RESOURCES"
"""Ray's variable for what a machine has, whatever it finds."""


@contextmanager
def cluster(options: FleetOptions, address: str | None) -> Iterator[None]:
    """Connected to the cluster at ``address``, or to a new one, which ends with the body.

    Raises UsageError where it cannot be reached, or a new one could never hold the replicas.
    """
    if address is None:
        if OVERRIDE not in os.environ:
            # A start takes half a minute. Ray finds no more cores than that, but maybe a share.
            _require_room(options, {"CPU": os.cpu_count() or inf, "GPU": inf})
        for variable, value in ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
    told: dict[str, Any] = {"log_to_driver": not options.quiet, "logging_level": logging.WARNING}
    if address is None:
        told |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    for name in ("ray.serve", "ray.data"):
        logging.getLogger(name).setLevel(logging.WARNING)
    with redirect_stdout(sys.stderr):  # where Ray's own words belong: stdout may be read as JSON
        yield from _connected(options, address, told)


def _connected(options: FleetOptions, address: str | None, told: dict[str, Any]) -> Iterator[None]:
    import ray

    try:
        ray.init(address=address or "local", **told)
    except Exception as error:  # Ray raises all kinds
        where = "start a cluster here" if address is None else f"use the cluster {address}"
        raise UsageError(f"Ray cannot {where} ({reason_of([str(error)])})") from None
    try:
        if address is None:
            _require_room(options, ray.cluster_resources())
        yield
    finally:
        ray.shutdown()


def _require_room(options: FleetOptions, has: dict[str, float]) -> None:
    """Ray would wait for machines to come, and none will."""
    each, number = resources_of(options), options.most_replicas
    for name, needed, option in (
        ("CPU", each.num_cpus, "--cpus-per-replica"),
        ("GPU", each.num_gpus, "--device"),
    ):
        if number * needed > has.get(name, 0):
            raise UsageError(
                f"{number} replicas of {needed:g} {name}s each, and this machine has "
                f"{has.get(name, 0):g}: give fewer replicas, another {option}, or a cluster's "
                "--ray-address"
            )
