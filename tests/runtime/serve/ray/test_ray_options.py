"""What a fleet is started with, and what Ray Serve is told of it. Without Ray."""

from __future__ import annotations

from typing import Any

import pytest

from engines.errors import BundleMissingError, CapacityError, UsageError
from runtime.serve.ray.options import (
    FleetOptions,
    Resources,
    engine_deployment,
    ingress_deployment,
    read_options,
    resources_of,
)
from tests.helpers.tiny_bundle import tiny_bundle

CPU = Resources(num_cpus=2, num_gpus=0, num_slots=3)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "bundle"),
        ({"bundle": "b", "nope": 1}, "nope"),
        ({"bundle": "b", "replicas": "two"}, "replicas"),
        ({"bundle": "b", "mode": "fast"}, "mode"),
        ({"bundle": "b", "replicas": 0}, "replicas is 0"),
        ({"bundle": "b", "replicas": 2, "min_replicas": 1, "max_replicas": 2}, "fixed number"),
        ({"bundle": "b", "max_replicas": 2}, "min_replicas"),
        ({"bundle": "b", "min_replicas": 3, "max_replicas": 2}, "max_replicas is 2"),
        ({"bundle": "b", "target_ongoing_requests": 0}, "target_ongoing_requests"),
        ({"bundle": "b", "upscale_delay_s": -1}, "upscale_delay_s"),
        ({"bundle": "b", "max_waiting": -1}, "max_waiting"),
        ({"bundle": object()}, "args"),
    ],
)
def test_a_wrong_argument_of_a_serve_config_is_refused_by_name(
    args: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_options(args)


def test_arguments_arrive_as_they_are_written_in_yaml() -> None:
    options = read_options(
        {
            "bundle": "/b/demo",
            "min_replicas": 0,
            "max_replicas": 4,
            "saguaro": "auto",
            "target_ongoing_requests": 2,
            "allow_origin": ["https://a.example"],
        }
    )
    assert (options.saguaro, options.most_replicas) == ("auto", 4)
    config = options.serve_config()
    assert config.model_name == "demo"
    assert config.allowed_origins == ("https://a.example",)
    assert not config.has_page


def test_arguments_arrive_as_words_of_serve_run() -> None:
    """``serve run runtime.serve.ray:app_of bundle=b replicas=2 ...``"""
    found = read_options({"bundle": "b", "replicas": "2", "sticky": "false", "saguaro": "0.5"})
    assert (found.replicas, found.sticky, found.saguaro) == (2, False, 0.5)


def test_scaling_reaches_ray_serve() -> None:
    options = FleetOptions(
        "b", min_replicas=1, max_replicas=3, upscale_delay_s=2.0, downscale_delay_s=9.0
    )
    told = engine_deployment(options, CPU)
    assert told["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 3,
        "target_ongoing_requests": 3,
        "upscale_delay_s": 2.0,
        "downscale_delay_s": 9.0,
    }
    assert "num_replicas" not in told
    asked = FleetOptions("b", min_replicas=1, max_replicas=3, target_ongoing_requests=1.5)
    assert engine_deployment(asked, CPU)["autoscaling_config"]["target_ongoing_requests"] == 1.5


def test_a_replica_takes_one_more_than_it_decodes_at_once() -> None:
    """So that a place that falls free is filled at once, and nothing more waits for a busy one."""
    told = engine_deployment(FleetOptions("b", replicas=2), CPU)
    assert told["num_replicas"] == 2
    assert told["max_ongoing_requests"] == 4
    assert "autoscaling_config" not in told
    assert (
        engine_deployment(FleetOptions("b", max_ongoing_requests=9), CPU)["max_ongoing_requests"]
        == 9
    )


def test_stickiness_can_be_left_to_ray_serve() -> None:
    assert "request_router_config" in engine_deployment(FleetOptions("b"), CPU)
    assert "request_router_config" not in engine_deployment(FleetOptions("b", sticky=False), CPU)


def test_a_stopping_replica_is_given_the_drain_time_and_the_last_chunks() -> None:
    options = FleetOptions("b", drain_timeout=40)
    for told in (engine_deployment(options, CPU), ingress_deployment(options)):
        assert told["graceful_shutdown_timeout_s"] > 40


@pytest.mark.parametrize(
    ("given", "num_cpus", "num_slots"),
    [({}, 2, 3), ({"batch": 2, "cpus_per_replica": 0.5}, 0.5, 2)],
)
def test_a_replica_takes_what_its_engines_need(
    given: dict[str, Any], num_cpus: float, num_slots: int
) -> None:
    found = resources_of(FleetOptions(str(tiny_bundle().path), **given))
    assert found == Resources(num_cpus, 0, num_slots)
    assert found.num_cores == (2 if num_cpus == 2 else None)


@pytest.mark.parametrize(
    ("device", "mode", "num_gpus", "num_cpus"),
    [
        ("cuda:0,cuda:1", "auto", 2, 1),
        ("cuda:0", "auto", 1, 1),
        ("cuda:0,cpu", "ssd", 1, 2),
        ("cuda:0,cpu", "ar", 1, 1),
    ],
)
def test_a_pair_on_gpus_takes_one_for_each_that_it_runs_on(
    device: str, mode: Any, num_gpus: int, num_cpus: int
) -> None:
    found = resources_of(FleetOptions(str(tiny_bundle().path), device=device, mode=mode))
    assert (found.num_gpus, found.num_cpus) == (num_gpus, num_cpus)


def test_what_the_bundle_cannot_do_is_said_before_a_replica_starts() -> None:
    with pytest.raises(CapacityError, match="batch of 9"):
        resources_of(FleetOptions(str(tiny_bundle().path), batch=9))
    with pytest.raises(BundleMissingError):
        resources_of(FleetOptions("no/such/bundle"))
