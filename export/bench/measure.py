"""``bench``: time each kind of call of a bundle's engines."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from engines.bundle import Bundle
from engines.errors import UsageError
from engines.manifest import DRAFT, TARGET, EngineManifest
from export.bench import device, host
from export.bench.calls import TimedCall, timed_calls
from export.bench.data_loader import feeds
from export.bench.latency import Latency, summarise
from export.check.runners import (
    ONNXRUNTIME,
    manifest_of,
    require_polygraphy,
    usable_cores,
    without_chatter,
)
from export.tensorrt.capabilities import local_gpu
from plugins.ort import library

BOTH = "both"
ROLES = (TARGET, DRAFT, BOTH)
RATE_FORMULA = (
    "tokens that a prompt reads or a step or root pass writes / p50_s "
    "(verify, branch: up to acceptance)"
)
GAIN_FORMULA = "tokens of a verification x p50_s of a step / p50_s of the verification"
TURNS = 5
"""A host that gets slower should do so for all calls alike, so they are timed in turns. On a GPU
each turn would make contexts anew, and may compile kernels."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of ``python -m export bench``; None lets the bundle or the machine decide."""

    role: str = BOTH
    iterations: int = 50
    warm_up: int = 5
    length: int | None = None
    tokens: int | None = None
    batch: int = 1
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class CallFigures:
    """One kind of call: B, T, R, L as in ``engines.tensors``, after ``text`` tokens."""

    kind: str
    batch: int
    tokens: int
    logits: int
    rows: int
    text: int
    latency: Latency
    tokens_per_second: float | None


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """``measured`` says what ran and was timed; ``threads`` is None on a GPU. ``verify_gain``: how
    many times faster a verification is than its tokens one by one; None where nothing verifies."""

    role: str
    measured: str
    threads: int | None
    calls: tuple[CallFigures, ...]
    verify_gain: float | None


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The figures, and what they hold for."""

    backend: str
    precision: str
    engines: tuple[EngineFigures, ...]
    machine: dict[str, str]
    versions: dict[str, str]


def bench(bundle: Bundle, options: BenchOptions, progress: Progress | None = None) -> BenchResult:
    """Time the engines that ``options.role`` asks for, one after the other.

    Raises UsageError, CapacityError, MissingDependencyError, and BackendError where the engine
    cannot run on this machine (a plan without its GPU).
    """
    _check(bundle, options)
    roles = _roles(bundle, options.role)
    planned = {
        role: timed_calls(
            manifest_of(bundle, role),
            batch=options.batch,
            length=options.length,
            num_verified=options.tokens,
        )
        for role in roles
    }
    require_polygraphy("timing an engine")
    progress = progress or (lambda _what, _done, _total: None)
    with without_chatter():
        engines = tuple(
            _time_engine(bundle, role, planned[role], options, progress) for role in roles
        )
    return BenchResult(
        backend=bundle.manifest.backend,
        precision=bundle.manifest.precision,
        engines=engines,
        machine=_machine(),
        versions=_versions(bundle),
    )


def _time_engine(
    bundle: Bundle,
    role: str,
    planned: tuple[TimedCall, ...],
    options: BenchOptions,
    progress: Progress,
) -> EngineFigures:
    manifest = manifest_of(bundle, role)
    if manifest.backend == ONNXRUNTIME:
        cores = host.choose_cores(options.threads, role)
        measured, threads, turns = host.MEASURED, len(cores), min(TURNS, options.iterations)
        opened = _host_calls(bundle, manifest, cores, options.batch)
    else:
        measured, threads, turns = device.MEASURED, None, 1
        opened = _device_calls(bundle, role)
    with opened as prepare:
        ready = [_Ready(f"{role} {timed.kind}", *prepare(timed)) for timed in planned]
        for turn in range(1, turns + 1):
            until = options.iterations * turn // turns
            for each in ready:
                _time(each, until, options, progress)
    calls = tuple(_figures(timed, each.taken) for timed, each in zip(planned, ready, strict=True))
    return EngineFigures(role, measured, threads, calls, verify_gain(calls))


def verify_gain(calls: Sequence[CallFigures]) -> float | None:
    """See GAIN_FORMULA; None where a step or a verification is missing."""
    found = {call.kind: call for call in calls}
    if not {"step", "verify"} <= found.keys():
        return None
    step, verify = found["step"], found["verify"]
    return verify.tokens * step.latency.p50_s / verify.latency.p50_s


Prepare = Callable[[TimedCall], tuple[Any, dict[str, Any]]]
"""A polygraphy runner of a call, and what to feed it."""


@contextmanager
def _host_calls(
    bundle: Bundle, manifest: EngineManifest, cores: tuple[int, ...], batch: int
) -> Iterator[Prepare]:
    border = {
        spec.name: (spec.dtype.value, spec.shape)
        for spec in manifest.inputs
        if not spec.name.startswith("kv.")
    }
    with closing(host.HostEngine(bundle, manifest, cores, batch)) as engine:
        yield lambda timed: (engine.runner(timed.call), feeds(border, timed.call))


@contextmanager
def _device_calls(bundle: Bundle, role: str) -> Iterator[Prepare]:
    with closing(device.DeviceEngine(bundle, role)) as engine:
        yield lambda timed: (engine.runner(timed), engine.feed(timed))


@dataclass(frozen=True, slots=True)
class _Ready:
    """A call that can be made, and the seconds that it has taken so far."""

    name: str
    runner: Any
    feed: dict[str, Any]
    taken: list[float] = field(default_factory=list)


def _time(call: _Ready, until: int, options: BenchOptions, progress: Progress) -> None:
    """Warm up, then time the call until ``until`` iterations are taken."""
    with call.runner as runner:
        for _ in range(options.warm_up):
            runner.infer(call.feed, check_inputs=False)
        for done in range(len(call.taken), until):
            progress(call.name, done, options.iterations)
            runner.infer(call.feed, check_inputs=False)
            call.taken.append(runner.last_inference_time())
    if until == options.iterations:
        progress(call.name, until, until)


def _figures(timed: TimedCall, seconds: list[float]) -> CallFigures:
    call, latency = timed.call, summarise(seconds)
    rate = timed.tokens / latency.p50_s if timed.tokens else None
    return CallFigures(
        timed.kind, call.batch, call.tokens, call.logits, call.rows, call.text, latency, rate
    )


def _check(bundle: Bundle, options: BenchOptions) -> None:
    if options.role not in ROLES:
        raise UsageError(f"--role {options.role} is unknown; choose {', '.join(ROLES)}")
    if options.iterations < 1:
        raise UsageError(f"--iterations is {options.iterations}, it must be at least 1")
    if options.warm_up < 1:
        raise UsageError(f"--warm-up is {options.warm_up}, it must be at least 1")
    if options.tokens is not None and options.role == DRAFT:
        raise UsageError("--tokens is of verifications, and a draft has none: time --role target")
    if options.threads is not None and bundle.manifest.backend != ONNXRUNTIME:
        raise UsageError(f"--threads is for {ONNXRUNTIME} bundles, {bundle.path} runs on a GPU")


def _roles(bundle: Bundle, role: str) -> tuple[str, ...]:
    if role == BOTH:
        return (TARGET,) if bundle.draft is None else (TARGET, DRAFT)
    return (role,)


def _machine() -> dict[str, str]:
    from runtime.device.machine import cpu_model

    usable, gpu = len(usable_cores()), local_gpu()
    found = {
        "cpu": cpu_model(),
        "cores": f"{usable} usable of {os.cpu_count() or usable}",
        "system": f"{platform.system()} {platform.release()}",
    }
    return found if gpu is None else {**found, "gpu": f"{gpu.name} ({gpu.capability})"}


def _versions(bundle: Bundle) -> dict[str, str]:
    packages = ["ssd-trt", "numpy", "polygraphy"]
    if bundle.manifest.backend == ONNXRUNTIME:
        packages.append("onnxruntime")
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from source"
    if "onnxruntime" in packages:
        found["cpu-kernels"] = library.find().identity
    plan = bundle.target.plan
    return found if plan is None else {**found, "compiler": plan.builder}
