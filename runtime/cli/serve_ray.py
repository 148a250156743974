"""Options of ``serve --ray`` and ``batch --ray``: many replicas of one bundle."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from engines.errors import UsageError
from runtime.cli.console import say
from runtime.cli.options import text, whole
from runtime.serve.config import KEY_VARIABLE, ServeConfig, is_loopback

if TYPE_CHECKING:
    from runtime.serve.ray.options import FleetOptions

OF_RAY = (
    "replicas",
    "min_replicas",
    "max_replicas",
    "target_ongoing_requests",
    "max_ongoing_requests",
    "upscale_delay_s",
    "downscale_delay_s",
    "cpus_per_replica",
)
"""Fields of ``FleetOptions`` that only these options set; None where they are not given."""
OF_ENGINES = (
    *("mode", "verify", "num_draft", "drafter", "branches", "batch", "fallback", "saguaro"),
    *("adaptive_length", "prefix_reuse", "backend", "device", "draft_sm_share"),
)
AS_SERVED = (
    *OF_ENGINES,
    *("served_model_name", "max_waiting", "max_choices", "max_body_mib"),
    *("protect_metrics", "spec_metrics", "json_log", "quiet"),
)
"""Fields that have the same name as the option of one server."""


def add_ray_options(parser: argparse.ArgumentParser) -> None:
    """Of ``serve``."""
    group = add_cluster_options(parser)
    for option, least, metavar, what in (
        ("--min-replicas", 0, "A", "scale by the requests that are there, from so many replicas"),
        ("--max-replicas", 1, "B", "up to so many"),
    ):
        group.add_argument(option, type=whole(least), metavar=metavar, help=what)
    group.add_argument(
        "--target-ongoing-requests",
        type=_positive,
        metavar="X",
        help="requests a replica that scaling aims at (default: the texts it decodes at once)",
    )
    for option, what in (
        ("--upscale-delay", "seconds of more than that before a replica is added (default: 30)"),
        ("--downscale-delay", "seconds of less before one is taken away (default: 600)"),
    ):
        group.add_argument(
            option, dest=option[2:].replace("-", "_") + "_s", type=_seconds, metavar="S", help=what
        )
    group.add_argument(
        "--max-ongoing-requests",
        type=whole(1),
        metavar="N",
        help="requests that a replica takes; more wait where any replica may take them (default: "
        "one more than it decodes at once)",
    )
    group.add_argument(
        "--no-sticky",
        dest="sticky",
        action="store_false",
        help="give each request to a replica with less to do than another, not to the one that has "
        "answered the beginning of its conversation",
    )


def add_cluster_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Of ``serve`` and ``batch``."""
    group = parser.add_argument_group("many replicas (the extra ray)")
    group.add_argument(
        "--ray", action="store_true", help="several replicas of the engine pair, on a Ray cluster"
    )
    group.add_argument("--replicas", type=whole(1), metavar="N", help="how many (default: 1)")
    group.add_argument(
        "--cpus-per-replica",
        type=_positive,
        metavar="C",
        help="cores that a replica has to itself (default: 2; 1 where all engines run on GPUs)",
    )
    group.add_argument(
        "--ray-address",
        type=text,
        metavar="ADDRESS",
        help="a cluster that runs already: auto or HOST:PORT (default: one of this machine, for as "
        "long as the command runs)",
    )
    return group


def wants_ray(args: argparse.Namespace) -> bool:
    """Raises UsageError for options of one way that the other does not have."""
    if not args.ray:
        given = [name for name in (*OF_RAY, "ray_address") if getattr(args, name, None) is not None]
        if given or not getattr(args, "sticky", True):
            option = _option(given[0]) if given else "--no-sticky"
            raise UsageError(f"{option} goes with --ray; add it, or drop {option}")
        return False
    if getattr(args, "no_page", False):
        raise UsageError("--no-page has no effect with --ray, which has no page; leave it away")
    if args.verbose:
        raise UsageError("--verbose does not go with --ray: what replicas load is in Ray's logs")
    if args.tensor_parallel != 1:
        raise UsageError("--tensor-parallel is 1 with --ray; a replica's GPUs are --device's")
    if args.ray_address is not None and args.ray_address.startswith("ray://"):
        raise UsageError(
            "--ray-address is a Ray Client's, through which answers cannot be streamed; run this "
            "on a node of the cluster with --ray-address auto"
        )
    return True


def batch_options_of(args: argparse.Namespace) -> FleetOptions:
    """Of ``batch``. Raises UsageError."""
    from runtime.serve.ray.options import FleetOptions

    return FleetOptions(
        bundle=str(args.bundle.absolute()),
        replicas=args.replicas or 1,
        cpus_per_replica=args.cpus_per_replica,
        quiet=args.quiet,
        **{name: getattr(args, name) for name in OF_ENGINES},
    )


def run_ray(args: argparse.Namespace, config: ServeConfig) -> int:
    """Serve until a signal; the exit code."""
    from runtime.serve.ray.command import Place, run_fleet

    def on_ready(url: str, mode: str, note: str | None) -> None:
        say(f"serving {config.model_name} at {url} with Ray Serve (mode {mode}, ctrl-C stops it)")
        if args.quiet:
            return
        if note:
            say(f"note: {note}")
        if config.api_key is None and not is_loopback(args.host):
            say(
                f"warning: whoever reaches {args.host} can use it without a key; set "
                f"{KEY_VARIABLE}, or --host 127.0.0.1"
            )

    options = options_of(args, config)
    place = Place(args.host, args.port, args.ray_address)
    return run_fleet(options, place, on_ready=on_ready, say=say)


def options_of(args: argparse.Namespace, config: ServeConfig) -> FleetOptions:
    """Raises UsageError."""
    from runtime.serve.ray.options import FleetOptions

    given = {name: getattr(args, name) for name in OF_RAY}
    try:
        return FleetOptions(
            bundle=str(args.bundle.absolute()),
            api_key=config.api_key,
            request_timeout=float(args.request_timeout),
            drain_timeout=float(args.drain_timeout),
            allow_origin=tuple(args.allow_origin),
            sticky=args.sticky,
            **{name: getattr(args, name) for name in AS_SERVED},
            **{name: value for name, value in given.items() if value is not None},
        )
    except UsageError as error:
        names = re.compile(rf"\b({'|'.join(vars(args))})\b")
        raise UsageError(names.sub(lambda found: _option(found[1]), str(error))) from None


def _option(name: str) -> str:
    return "--" + name.removesuffix("_s").replace("_", "-")


def _positive(value: str) -> float:
    number = _number(value)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above 0")
    return number


def _seconds(value: str) -> float:
    number = _number(value)
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"{value!r} is not a number of seconds")
    return number


def _number(value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        return -1.0
    return number if number < float("inf") else -1.0
