"""``python -m runtime serve``: an OpenAI-compatible server over one bundle."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from runtime.cli.console import busy, say
from runtime.cli.options import (
    MODES,
    Commands,
    add_bundle_options,
    add_command,
    open_for,
    text,
    whole,
)
from runtime.cli.serve_ray import add_ray_options, run_ray, wants_ray
from runtime.serve.config import KEY_VARIABLE, MIB, ServeConfig, is_loopback, read_key
from runtime.serve.log import logger
from runtime.serve.process import bind, require_packages, run_app, url_of
from runtime.serve.rounds import RoundLog
from runtime.serve.service import Service
from runtime.serve.speculative import read_speculative_config

if TYPE_CHECKING:
    from runtime.llm import LLM

DEFAULTS = {"mode": "auto", "verify": "coupled", "fallback": "auto", "drafter": "auto"}
"""Of the options that --speculative-config can speak for, where it is not None."""

DESCRIPTION = """\
Serve a bundle over HTTP as OpenAI's API: /v1/completions, /v1/chat/completions, /v1/models; and
/health, /metrics (Prometheus), /stats and /openapi.json. The page at / chats and shows the last
rounds. Requests that come together share the rounds."""

EXAMPLES = f"""\
examples:
  python -m runtime serve --bundle engines/bundles/demo
  python -m runtime serve --bundle engines/bundles/demo --port 9000 --batch 4 --max-waiting 16
  {KEY_VARIABLE}=secret python -m runtime serve --bundle engines/bundles/demo --host 0.0.0.0
  python -m runtime serve --bundle engines/bundles/demo \\
      --speculative-config '{{"method": "ssd", "num_speculative_tokens": 2}}'

It stops at SIGTERM or ctrl-C: new requests get 503, those that run are finished.
Nothing is encrypted here: for the open network put a reverse proxy with TLS in front.
"""


def add_to(commands: Commands) -> None:
    """Register the command."""
    parser = add_command(commands, "serve", "an OpenAI-compatible server", DESCRIPTION, EXAMPLES)
    speculation = add_bundle_options(parser)
    speculation.add_argument(
        "--mode", choices=MODES, default="auto", help="how to decode (default: auto)"
    )
    speculation.add_argument(
        "--speculative-config",
        type=text,
        metavar="JSON",
        help="the same in vLLM's form, for what its keys say: method (ssd, draft_model, ngram, "
        "auto), num_speculative_tokens, num_branches, fallback, drafter, rejection_sample_method",
    )
    speculation.add_argument(
        "--batch",
        type=whole(1),
        metavar="N",
        help="texts decoded at once (default: what the bundle was built for)",
    )
    _add_network_options(parser)
    _add_limit_options(parser)
    _add_output_options(parser)
    add_ray_options(parser)
    parser.set_defaults(run=run)


def _add_network_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("network")
    group.add_argument(
        "--host",
        type=text,
        default="127.0.0.1",
        help="address to listen at; 0.0.0.0 for all of this machine's (default: %(default)s, which "
        "only this machine can reach)",
    )
    group.add_argument(
        "--port", type=_port, default=8000, help="0: any that is free (default: %(default)s)"
    )
    group.add_argument(
        "--api-key",
        type=text,
        metavar="KEY",
        help="what clients have to send as Authorization: Bearer KEY, but for /health, /metrics "
        "and the page's files; other users of this machine can read it here, so better set "
        f"{KEY_VARIABLE} in the environment",
    )
    group.add_argument(
        "--protect-metrics", action="store_true", help="ask for the key at /metrics, too"
    )
    group.add_argument(
        "--allow-origin",
        type=text,
        action="append",
        default=[],
        metavar="URL",
        help="let web pages of that origin use the server (CORS); may be given several times; *: "
        "all (default: none)",
    )
    group.add_argument(
        "--served-model-name",
        type=text,
        metavar="NAME",
        help="what requests call the model (default: the bundle folder's name)",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    for option, default, least, metavar, what in (
        ("--max-waiting", 64, 0, "N", "texts that may wait beside those decoded; then 429"),
        ("--max-choices", 16, 1, "N", "texts that one request may ask for, prompts x n"),
        ("--max-body-mib", 1, 1, "M", "longest request body, in MiB"),
        ("--request-timeout", 600, 0, "S", "seconds an answer may take; 0: any number"),
        ("--drain-timeout", 30, 0, "S", "seconds that running answers get after SIGTERM"),
    ):
        group.add_argument(
            option,
            type=whole(least),
            default=default,
            metavar=metavar,
            help=f"{what} (default: {default})",
        )


def _add_output_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "--spec-metrics",
        action="store_true",
        help="with each answer, how its drafts fared: metrics.speculative_decoding",
    )
    group.add_argument(
        "--no-page", action="store_true", help="no page at /, which chats and shows the last rounds"
    )
    group.add_argument("--json-log", action="store_true", help="the access log as JSON lines")
    group.add_argument("--quiet", action="store_true", help="no access log")


def _port(value: str) -> int:
    if not value.isascii() or not value.isdecimal() or int(value) > 65535:
        raise argparse.ArgumentTypeError(f"{value!r} is no port, 0 to 65535")
    return int(value)


def run(args: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    require_packages()
    _apply_speculative_config(args)
    config = _config_of(args)
    if wants_ray(args):
        return run_ray(args, config)
    with bind(args.host, args.port) as bound:  # before a model is loaded for nothing
        rounds = RoundLog(num_draft=0)
        with busy(f"loading {args.bundle}", quiet=args.quiet, plain=True) as announce:
            llm = _open(args, rounds, announce)
        return _serve(args, config, bound, llm, rounds)


def _open(args: argparse.Namespace, rounds: RoundLog, announce: Callable[[str], None]) -> LLM:
    args.trace = None
    args.open_llm = partial(args.open_llm, on_round=rounds)
    return open_for(args, mode=args.mode, max_batch=args.batch, announce=announce)


def _serve(
    args: argparse.Namespace, config: ServeConfig, bound: socket.socket, llm: LLM, rounds: RoundLog
) -> int:
    from runtime.async_llm import AsyncLLM
    from runtime.serve.http.app import create_app

    try:
        engines = AsyncLLM(llm)
    except BaseException:
        llm.close()
        raise
    try:
        service = Service(engines, rounds, config)
        log = logger(say, is_json=args.json_log, is_quiet=args.quiet)
        app = create_app(service, log=log)
        on_ready = partial(_say_ready, args, config, bound, llm)
        return run_app(app, service, bound, on_ready=on_ready, say=say)
    finally:
        engines.close()


def _say_ready(
    args: argparse.Namespace, config: ServeConfig, bound: socket.socket, llm: LLM
) -> None:
    """Printed even when quiet: with port 0 nobody else knows where it is."""
    say(f"serving {config.model_name} at {url_of(bound)} (mode {llm.mode}, ctrl-C stops it)")
    if args.quiet:
        return
    if llm.note:
        say(f"note: {llm.note}")
    if config.api_key is None and not is_loopback(args.host):
        say(
            f"warning: whoever reaches {args.host} can use it without a key; set {KEY_VARIABLE}, "
            "or --host 127.0.0.1"
        )


def _apply_speculative_config(args: argparse.Namespace) -> None:
    """Raises UsageError where JSON and an option say two things."""
    if args.speculative_config is None:
        return
    wishes = read_speculative_config(args.speculative_config)
    for name, value in wishes.items():
        if getattr(args, name) not in (DEFAULTS.get(name), value):
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} and --speculative-config differ; give one of them")
        setattr(args, name, value)


def _config_of(args: argparse.Namespace) -> ServeConfig:
    return ServeConfig(
        model_name=args.served_model_name or Path(os.path.abspath(args.bundle)).name,
        api_key=read_key(args.api_key),
        protects_metrics=args.protect_metrics,
        max_waiting=args.max_waiting,
        max_choices=args.max_choices,
        max_body_bytes=args.max_body_mib * MIB,
        request_timeout_s=float(args.request_timeout) or None,
        drain_timeout_s=float(args.drain_timeout),
        allowed_origins=tuple(args.allow_origin),
        spec_metrics=args.spec_metrics,
        has_page=not args.no_page,
    )
