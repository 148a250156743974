"""Options of ``bench serving``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from urllib.parse import urlsplit

from runtime.bench.serving.client import PATHS
from runtime.cli.options import MODES, text, whole


def add_options(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("server").add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--base-url",
        type=_url,
        metavar="URL",
        help="a running server that speaks OpenAI's API, for example http://127.0.0.1:8000",
    )
    where.add_argument(
        "--bundle", type=Path, metavar="DIR", help="start a server for this bundle, and end it"
    )
    own = parser.add_argument_group("with --bundle")
    own.add_argument("--mode", choices=MODES, help="how its server decodes (default: auto)")
    own.add_argument("--batch", type=whole(1), metavar="N", help="texts it decodes at once")
    _add_load(parser.add_argument_group("load"))
    _add_request(parser.add_argument_group("requests"))
    output = parser.add_argument_group("result")
    output.add_argument(
        "--save-result",
        type=Path,
        metavar="FILE",
        help="one level's figures as a JSON file with the keys of vLLM's serving benchmark",
    )
    output.add_argument(
        "--save-detailed",
        action="store_true",
        help="with --save-result: each request's lengths, times and text, too",
    )


def _add_load(group: argparse._ArgumentGroup) -> None:
    how = group.add_mutually_exclusive_group()
    how.add_argument(
        "--concurrency",
        type=_counts,
        metavar="N[,N]",
        help="clients that each wait for their answer before they ask again (default: 1,4)",
    )
    how.add_argument(
        "--request-rate",
        type=_rates,
        metavar="R[,R]",
        help="requests a second, at random times (Poisson), whatever has been answered",
    )
    group.add_argument(
        "--faults",
        action="store_true",
        help="clients that drop, send nonsense or 10 MiB, or read slowly, and with --bundle "
        "SIGTERM, beside streams that must not notice; without a load option only these",
    )
    group.add_argument(
        "--num-prompts", type=whole(1), default=16, metavar="N",
        help="requests of each level (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--num-warmups", type=whole(0), default=1, metavar="N",
        help="requests before, that do not count (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--seed", type=whole(0), default=0, metavar="S",
        help="of random words and arrival times (default: 0)",
    )  # fmt: skip


def _add_request(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--dataset", type=Path, metavar="FILE", help=".jsonl of prompts (default: random words)"
    )
    group.add_argument(
        "--input-len", type=whole(1), default=32, metavar="N",
        help="random words a prompt, which are about as many tokens (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--output-len", type=whole(1), default=64, metavar="N",
        help="longest answer, in tokens (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--ignore-eos", action="store_true", help="answers of the full length, as of vLLM's"
    )
    group.add_argument(
        "--endpoint", choices=tuple(PATHS), default="completions", help="(default: %(default)s)"
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="(default: 0)")
    group.add_argument(
        "--model", type=text, metavar="NAME", help="(default: the first that the server has)"
    )
    group.add_argument(
        "--api-key", type=text, metavar="KEY", help="(default: SSD_API_KEY of the environment)"
    )
    group.add_argument(
        "--timeout", type=whole(1), default=600, metavar="S",
        help="seconds without a byte after which a request has failed (default: %(default)s)",
    )  # fmt: skip


def _url(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise argparse.ArgumentTypeError(f"{value!r} does not begin with http:// or https://")
    try:
        is_whole = bool(urlsplit(value).hostname) and urlsplit(value).port != 0
    except ValueError:
        is_whole = False
    if not is_whole:
        raise argparse.ArgumentTypeError(f"{value!r} has no address in it: http://HOST:PORT")
    return value.rstrip("/").removesuffix("/v1")


def _counts(value: str) -> tuple[int, ...]:
    return tuple(whole(1)(each) for each in value.split(","))


def _rates(value: str) -> tuple[float, ...]:
    try:
        rates = tuple(float(each) for each in value.split(","))
    except ValueError:
        rates = (0.0,)
    if not all(0 < rate < math.inf for rate in rates):
        raise argparse.ArgumentTypeError(f"{value!r} is not a number above 0, or several")
    return rates
