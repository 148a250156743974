"""A fleet as one application of Ray Serve: an ingress, and replicas behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engines.errors import MissingDependencyError
from runtime.serve.process import require_packages
from runtime.serve.ray.options import (
    FleetOptions,
    engine_deployment,
    ingress_deployment,
    resources_of,
)

if TYPE_CHECKING:
    from ray.serve import Application

REPLICAS, INGRESS = "Engines", "Ingress"
"""Names of the deployments, as ``serve status`` shows them."""


def require_ray() -> None:
    """Raises MissingDependencyError unless the extras ``ray`` and ``serve`` are installed."""
    import importlib.util

    require_packages()
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray.serve") is None:
        raise MissingDependencyError("ray[serve]", "ray", "many replicas")


def build(options: FleetOptions) -> Application:
    """Raises MissingDependencyError, and what ``resources_of`` raises."""
    require_ray()
    resources = resources_of(options)
    from ray import serve

    from runtime.serve.ray.ingress import Ingress
    from runtime.serve.ray.replica import EngineReplica

    logging = {"enable_access_log": False, "log_level": "WARNING"}
    replicas = serve.deployment(
        EngineReplica,
        name=REPLICAS,
        logging_config=logging,
        **engine_deployment(options, resources),
    ).bind(options, resources.num_cores)
    ingress = serve.deployment(
        serve.ingress()(Ingress),
        name=INGRESS,
        logging_config=logging,
        **ingress_deployment(options),
    )
    return ingress.bind(options, replicas)
