"""``bench serving``: from the command line's arguments to figures."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engines.errors import MissingDependencyError, UsageError
from runtime.bench.kind import Show
from runtime.bench.serving import faults
from runtime.bench.serving.client import Ask, Outcome, ask
from runtime.bench.serving.figures import Run, counters_of, details_of, figures_of, rounds_of
from runtime.bench.serving.load import Level, Ran, run_level
from runtime.bench.serving.prompts import prompts_of
from runtime.bench.serving.report import ServingFigures
from runtime.bench.serving.server import Server, server_of
from runtime.serve.config import KEY_VARIABLE

if TYPE_CHECKING:
    import httpx2

DEFAULT_CONCURRENCY = (1, 4)
NUM_BYSTANDERS = 4


def measure(args: argparse.Namespace, show: Show) -> ServingFigures:
    """Raises UsageError for a server that is not there or does not answer."""
    try:
        import_module("httpx2")  # before a server is started for nothing
    except ImportError:
        raise MissingDependencyError("httpx2", "serve", "bench serving") from None
    levels = _levels(args)
    if args.save_detailed and args.save_result is None:
        raise UsageError("--save-detailed goes with --save-result; name its file")
    if args.save_result is not None and len(levels) != 1:
        raise UsageError(
            f"--save-result holds one level, and {len(levels)} are asked for; give one "
            "--concurrency or --request-rate"
        )
    read = partial(prompts_of, args.dataset, num_words=args.input_len)
    warm_ups = read(args.num_warmups, seed=args.seed - 1)
    prompts = [read(args.num_prompts, seed=args.seed + place) for place in range(len(levels) + 1)]
    with _server(args) as (url, server):
        return asyncio.run(_measure(args, show, levels, warm_ups, prompts, url, server))


def _levels(args: argparse.Namespace) -> list[Level]:
    if args.request_rate is not None:
        return [Level(request_rate=rate) for rate in args.request_rate]
    default = () if args.faults else DEFAULT_CONCURRENCY
    return [Level(concurrency=num) for num in args.concurrency or default]


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[str, Server | None]]:
    if args.base_url is not None:
        if args.mode is not None or args.batch is not None:
            raise UsageError("--mode and --batch go with --bundle; a running server has its own")
        yield args.base_url, None
        return
    given = ["--bundle", str(args.bundle)]
    for option in ("mode", "batch"):
        value = getattr(args, option)
        given += [] if value is None else [f"--{option}", str(value)]
    with server_of(given) as server:
        yield server.url, server


async def _measure(
    args: argparse.Namespace,
    show: Show,
    levels: Sequence[Level],
    warm_ups: Sequence[str],
    prompts: Sequence[Sequence[str]],
    url: str,
    server: Server | None,
) -> ServingFigures:
    """``prompts`` of each level, and of the faults: a server may keep what it has read."""
    import httpx2

    key = args.api_key or os.environ.get(KEY_VARIABLE)
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
    client = httpx2.AsyncClient(
        base_url=url, headers=headers, timeout=float(args.timeout), limits=limits
    )
    async with client:
        about = Ask(
            model=args.model or await _first_model(client),
            endpoint=args.endpoint,
            max_tokens=args.output_len,
            temperature=args.temperature,
            ignores_eos=args.ignore_eos,
        )
        await _warm_up(client, about, warm_ups)
        done = [
            await _one_level(client, about, level, texts, args.seed, show)
            for level, texts in zip(levels, prompts[:-1], strict=True)
        ]
        found = await _faults(client, about, prompts[-1], server, show) if args.faults else ()
    if args.save_result is not None:
        _save(args.save_result, about.model, *done[0], details=args.save_detailed)
    errors = (each.error for _, ran in done for each in ran.outcomes)
    return ServingFigures(
        what=_in_words(args),
        model=about.model,
        runs=tuple(run for run, _ in done),
        faults=tuple(found),
        errors=tuple(dict.fromkeys(filter(None, errors))),
    )


async def _first_model(client: httpx2.AsyncClient) -> str:
    """Raises UsageError for what is no such server."""
    import httpx2

    try:
        response = await client.get("/v1/models")
        response.raise_for_status()
        return str(response.json()["data"][0]["id"])
    except httpx2.HTTPError as error:
        raise UsageError(f"{client.base_url} does not answer as a server should: {error}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise UsageError(f"{client.base_url}/v1/models names no model; give --model") from None


async def _warm_up(client: httpx2.AsyncClient, about: Ask, prompts: Sequence[str]) -> None:
    for prompt in prompts:
        outcome = await ask(client, about, prompt, origin=0.0)
        if outcome.error is not None:
            raise UsageError(f"the server does not answer a first request: {outcome.error}")


async def _one_level(
    client: httpx2.AsyncClient,
    about: Ask,
    level: Level,
    prompts: Sequence[str],
    seed: int,
    show: Show,
) -> tuple[Run, Ran]:
    num_done = 0
    with show(str(level), len(prompts)) as tick:

        def on_done(outcome: Outcome) -> None:
            nonlocal num_done
            num_done += 1
            tick(num_done, outcome.error or f"{outcome.num_tokens} tokens")

        before = await counters(client)
        ran = await run_level(
            level,
            prompts,
            lambda prompt, origin: ask(client, about, prompt, origin=origin),
            seed=seed,
            on_done=on_done,
        )
        after = await counters(client)
    return figures_of(level, ran, before, after), ran


async def counters(client: httpx2.AsyncClient) -> dict[str, float]:
    """Of a server that has any, since its start: vLLM's of proposals, and ours of all rounds."""
    metrics = await _page(client, "/metrics")
    stats = await _page(client, "/stats?last=1")
    try:
        return counters_of(metrics) | rounds_of(json.loads(stats))
    except (ValueError, RecursionError):  # some other server's page
        return counters_of(metrics)


async def _page(client: httpx2.AsyncClient, path: str) -> str:
    """Empty where the server has none."""
    import httpx2

    try:
        response = await client.get(path)
    except httpx2.HTTPError:
        return ""
    return response.text if response.status_code == 200 else ""


async def _faults(
    client: httpx2.AsyncClient,
    about: Ask,
    prompts: Sequence[str],
    server: Server | None,
    show: Show,
) -> list[faults.Fault]:
    try:
        others = await faults.known_answers(client, about, prompts[:NUM_BYSTANDERS])
    except ValueError as error:
        raise UsageError(f"the server does not answer before any fault: {error}") from None
    kinds = [faults.drops, faults.malformed, faults.huge, faults.slow_reader]
    found = []
    with show("faults", len(kinds) + (server is not None)) as tick:
        for kind in kinds:
            fault = await others.during(partial(kind, others), kind.__name__.replace("_", " "))
            found.append(fault.also(await faults.is_left_alone(client)))
            tick(len(found), fault.name)
        if server is not None:
            stop = partial(faults.terminated, others, server.terminate)
            fault = await others.during(stop, "SIGTERM")
            code = await asyncio.to_thread(server.wait)
            wrong = [] if code == 0 else [f"the server ended with exit code {code}"]
            found.append(fault.also(wrong))
            tick(len(found), fault.name)
    return found


def _save(path: Path, model: str, run: Run, ran: Ran, *, details: bool) -> None:
    record: dict[str, Any] = {
        "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
        "backend": "ssd-trt",
        "model_id": model,
        "num_prompts": len(ran.outcomes),
        **run.keys,
    }
    if details:
        record |= details_of(ran)
    try:
        path.write_text(json.dumps(record) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write --save-result {path}: {error.strerror}") from None


def _in_words(args: argparse.Namespace) -> str:
    prompts = args.dataset.name if args.dataset else f"{args.input_len} random words"
    return (
        f"{args.num_prompts} requests a level, {prompts}, answers of at most {args.output_len} "
        f"tokens, temperature {args.temperature:g}, {args.endpoint}, streamed"
    )
