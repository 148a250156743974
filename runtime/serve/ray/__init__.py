"""Many replicas of one bundle with Ray Serve: ``python -m runtime serve --ray``, ``serve deploy``.

options      what a fleet is started with, and what Ray Serve is told of it
replica      one engine pair, in a process of its own
messages     what a replica sends of a text
fleet        many replicas as what the server calls its engines: retries, counts
affinity     which requests belong together, and so to one replica
retry        what to do when a replica is lost
ingress      the server's application (``runtime.serve.http``) over a fleet
router       how Ray Serve chooses a replica; the one module that is made of Ray
application  all of it as one application of Ray Serve
command      ``--ray``: the cluster, the signals, the drain
reports      one line of what Ray says over a page
data         batch files on Ray Data

Everything that is distributed is Ray's: placement, restarts, scaling, routing, health checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app_of(args: Mapping[str, Any]) -> Application:
    """The application for a Serve config: ``import_path: runtime.serve.ray:app_of``.

    ``args`` has the fields of ``runtime.serve.ray.options.FleetOptions``; ``bundle`` is the one
    that has no default. Raises UsageError for one that is unknown or wrong.
    """
    from runtime.serve.ray.application import build
    from runtime.serve.ray.options import read_options

    return build(read_options(args))
