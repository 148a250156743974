"""A cluster of one's own: what its processes inherit, and what it has to have room for."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from engines.errors import UsageError
from runtime.serve.ray import cluster as module
from runtime.serve.ray.cluster import cluster
from runtime.serve.ray.options import FleetOptions, Resources

TELEMETRY = "RAY_USAGE_STATS_ENABLED"


class Ray:
    """What ``cluster`` calls of Ray; it keeps the environment of a start."""

    def __init__(self, **has: float) -> None:
        self.environment: dict[str, str] = {}
        self.is_running = False
        self._has = has

    def init(self, **_: Any) -> None:
        self.environment = dict(os.environ)
        self.is_running = True

    def shutdown(self) -> None:
        self.is_running = False

    def cluster_resources(self) -> dict[str, float]:
        return self._has


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    for variable in module.ENVIRONMENT:
        monkeypatch.setenv(variable, "")  # so that it is as before, after the test
        monkeypatch.delenv(variable)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    fake = Ray(CPU=4)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(
        init=fake.init, shutdown=fake.shutdown, cluster_resources=fake.cluster_resources
    ))  # fmt: skip
    monkeypatch.setattr(module, "resources_of", lambda _: Resources(2, 0, 3))
    return fake


def test_a_cluster_of_ones_own_reports_nothing_to_its_makers(ray: Ray) -> None:
    with cluster(FleetOptions("b", replicas=2), None):
        assert ray.environment[TELEMETRY] == "0"
    assert not ray.is_running


def test_what_ray_prints_is_not_among_the_answers(
    ray: Ray, capsys: pytest.CaptureFixture[str]
) -> None:
    """``batch --json`` has one record in stdout; Ray says there what it ends."""
    with cluster(FleetOptions("b"), None):
        sys.stdout.write("(raylet) Task failed\n")
    sys.stdout.write("{}\n")
    assert capsys.readouterr().out == "{}\n"
    assert not ray.is_running


def test_what_somebody_has_set_stays(ray: Ray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TELEMETRY, "1")
    with cluster(FleetOptions("b"), None):
        assert ray.environment[TELEMETRY] == "1"


def test_replicas_that_never_fit_are_refused_before_a_cluster_starts(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took half a minute to say so."""
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    with (
        pytest.raises(UsageError, match="3 replicas of 2 CPUs each, and this machine has 5"),
        cluster(FleetOptions("b", replicas=3), None),
    ):
        pass
    assert not ray.environment


def test_a_cluster_that_is_there_may_have_more_than_this_machine(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with cluster(FleetOptions("b", replicas=9), "auto"):
        assert ray.is_running


def test_replicas_that_never_fit_are_refused_and_the_cluster_ends(
    ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine's cores Ray may have a share."""
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    with (
        pytest.raises(UsageError, match="3 replicas of 2 CPUs each, and this machine has 4"),
        cluster(FleetOptions("b", replicas=3), None),
    ):
        pass
    assert not ray.is_running
