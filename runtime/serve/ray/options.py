"""What a fleet is started with: by ``serve --ray``, or the ``args`` of a Serve config."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from engines.bundle import Bundle, open_bundle
from engines.compat import require
from engines.errors import UsageError
from runtime.devices import DevicePair
from runtime.serve.config import MIB, ServeConfig, read_key
from runtime.serve.service import GRACE_S
from runtime.settings import devices_for
from runtime.wishes import read_batch

HEALTH_PERIOD_S = 5.0
NUM_STARTS = 3
"""Of a replica. Ray Serve's own 20 would only say later that a bundle does not open."""
NUM_CORES = 2
"""Of a replica on the CPU: one for each engine."""
INGRESS_REQUESTS = 10_000
"""So many may be on their way in before Ray Serve lets them wait; the gate refuses long before."""
OF_ENGINES = (
    "mode",
    "verify",
    "num_draft",
    "drafter",
    "branches",
    "fallback",
    "saguaro",
    "adaptive_length",
    "backend",
    "device",
    "draft_sm_share",
    "prefix_reuse",
)
"""Fields that ``LLM.open`` takes under the same name."""


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Fields that the command ``serve`` has as options mean the same and have the same defaults.

    bundle        a path that holds on every node
    replicas      how many; None: one, or what the next two say
    min_replicas, max_replicas
                  scale between them by how many requests are there for each replica
    target_ongoing_requests
                  that many; None: the texts that a replica decodes at once
    upscale_delay_s, downscale_delay_s
                  how long that must have been so before a replica is added, or taken away
    max_ongoing_requests
                  what a replica takes; more wait at the ingress, from where any replica may take
                  them. None: one more than it decodes at once
    cpus_per_replica
                  None: 2; 1 where no engine runs on the CPU. Their cores are a replica's own
    sticky        requests that begin alike go to one replica, which has their beginning cached
    request_timeout, drain_timeout
                  seconds; the latter holds for a replica that is taken away, too
    """

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid"}

    bundle: str
    mode: Literal["auto", "ar", "sd", "ssd"] = "auto"
    verify: Literal["coupled", "ratio"] = "coupled"
    num_draft: int | None = None
    drafter: Literal["auto", "model", "lookup", "both"] = "auto"
    branches: int | None = None
    batch: int | None = None
    fallback: Literal["auto", "zero", "jit", "lookup"] = "auto"
    saguaro: float | Literal["auto"] = 1.0
    adaptive_length: bool = False
    prefix_reuse: bool = True
    backend: str | None = None
    device: str | None = None
    draft_sm_share: float | None = None

    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    target_ongoing_requests: float | None = None
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    max_ongoing_requests: int | None = None
    cpus_per_replica: float | None = None
    sticky: bool = True

    api_key: str | None = None
    served_model_name: str | None = None
    max_waiting: int = 64
    max_choices: int = 16
    max_body_mib: int = 1
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    allow_origin: tuple[str, ...] = ()
    protect_metrics: bool = False
    spec_metrics: bool = False
    json_log: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        scales = self.min_replicas is not None or self.max_replicas is not None
        if self.replicas is not None and scales:
            raise UsageError(
                "replicas is a fixed number; drop it, or min_replicas and max_replicas"
            )
        if scales and (self.min_replicas is None or self.max_replicas is None):
            raise UsageError("min_replicas and max_replicas go together; give both")
        for name, least in (
            ("replicas", 1),
            ("min_replicas", 0),
            ("max_replicas", max(1, self.min_replicas or 0)),
            ("max_ongoing_requests", 1),
            ("upscale_delay_s", 0),
            ("downscale_delay_s", 0),
            ("batch", 1),
            ("max_waiting", 0),
            ("max_choices", 1),
            ("max_body_mib", 1),
            ("request_timeout", 0),
            ("drain_timeout", 0),
        ):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise UsageError(f"{name} is {value}, expected at least {least}")
        for name in ("target_ongoing_requests", "cpus_per_replica"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}, expected more than 0")

    @property
    def most_replicas(self) -> int:
        return self.max_replicas or self.replicas or 1

    def engine_options(self) -> dict[str, Any]:
        """For ``LLM.open``."""
        return {**{name: getattr(self, name) for name in OF_ENGINES}, "max_batch": self.batch}

    def serve_config(self) -> ServeConfig:
        """For the server's application. Raises UsageError for a bad key."""
        return ServeConfig(
            model_name=self.served_model_name or Path(os.path.abspath(self.bundle)).name,
            api_key=read_key(self.api_key),
            max_waiting=self.max_waiting,
            max_choices=self.max_choices,
            max_body_bytes=self.max_body_mib * MIB,
            request_timeout_s=self.request_timeout or None,
            drain_timeout_s=self.drain_timeout,
            allowed_origins=self.allow_origin,
            protects_metrics=self.protect_metrics,
            spec_metrics=self.spec_metrics,
            has_page=False,
        )


@dataclass(frozen=True, slots=True)
class Resources:
    """What one replica takes of its node, and how many texts it decodes at once. One process runs
    both engines, so all of it is on one node by itself."""

    num_cpus: float
    num_gpus: int
    num_slots: int

    @property
    def num_cores(self) -> int | None:
        """To keep to; None for less than one."""
        return int(self.num_cpus) or None


def read_options(args: Mapping[str, Any]) -> FleetOptions:
    """Of a Serve config's ``args``. Raises UsageError with the name of what is unknown or wrong."""
    from pydantic import TypeAdapter, ValidationError

    try:
        # As JSON, where a list may be a tuple; "2" may be 2, since ``serve run`` hands on words.
        return TypeAdapter(FleetOptions).validate_json(json.dumps(dict(args)))
    except TypeError as error:
        raise UsageError(f"args: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][:1]) or "args"
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise UsageError(f"{name}: {reason}") from None


def resources_of(options: FleetOptions) -> Resources:
    """Checked against the bundle, before a replica is started for nothing.

    Raises BundleError, UsageError or CapacityError.
    """
    bundle = open_bundle(options.bundle)
    devices = devices_for(bundle, options.device, options.draft_sm_share)
    num_slots = read_batch(options.batch, bundle.manifest.limits.max_batch)
    _require_runnable(bundle, options, devices)
    names = {devices.target} if options.mode == "ar" else {devices.target, devices.draft}
    gpus = {each for each in names if each.is_gpu}
    num_cpus = options.cpus_per_replica
    if num_cpus is None:
        num_cpus = 1 if gpus == names else NUM_CORES
    return Resources(num_cpus, len(gpus), num_slots)


def _require_runnable(bundle: Bundle, options: FleetOptions, devices: DevicePair) -> None:
    require(
        bundle,
        backend=options.backend or bundle.manifest.backend,
        num_draft=options.num_draft,
        branches=options.branches,
        on_gpu=devices.on_gpu,
    )


def engine_deployment(options: FleetOptions, resources: Resources) -> dict[str, Any]:
    """What Ray Serve is told of the replicas: ``Deployment.options``' keywords."""
    most = options.max_ongoing_requests
    told: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": resources.num_cpus, "num_gpus": resources.num_gpus},
        "max_ongoing_requests": resources.num_slots + 1 if most is None else most,
        "health_check_period_s": HEALTH_PERIOD_S,
        "max_constructor_retry_count": NUM_STARTS,
        **_shutdown(options),
    }
    if options.sticky:
        told["request_router_config"] = {
            "request_router_class": "runtime.serve.ray.router.StickyRouter"
        }
    if options.max_replicas is None:
        return {**told, "num_replicas": options.most_replicas}
    return {
        **told,
        "autoscaling_config": {
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.target_ongoing_requests or resources.num_slots,
            "upscale_delay_s": options.upscale_delay_s,
            "downscale_delay_s": options.downscale_delay_s,
        },
    }


def ingress_deployment(options: FleetOptions) -> dict[str, Any]:
    """Of the one process that clients are answered by. It takes no core of its own: nearly all of
    the work is the replicas'."""
    return {
        "num_replicas": 1,
        "ray_actor_options": {"num_cpus": 0},
        "max_ongoing_requests": INGRESS_REQUESTS,
        "health_check_period_s": HEALTH_PERIOD_S,
        **_shutdown(options),
    }


def _shutdown(options: FleetOptions) -> dict[str, Any]:
    return {
        "graceful_shutdown_timeout_s": options.drain_timeout + GRACE_S,
        "graceful_shutdown_wait_loop_s": 0.5,
    }
