"""One ONNX file to one TensorRT engine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from engines.errors import BackendError
from engines.profiles import ShapeProfile
from export.tensorrt.capabilities import capability_value
from export.tensorrt.graph_file import GraphFile, read_graph
from export.tensorrt.network import parse, require_operators
from export.tensorrt.plan_header import contradiction
from export.tensorrt.profiles import add_profile
from export.tensorrt.progress import BuildProgress, Progress, monitor
from export.tensorrt.vendor import RTX, STANDARD, Vendor
from plugins import tensorrt as plugins
from plugins.vendor_log import Messages, logger_for

WORKSPACE_BYTES = {STANDARD: 2**30, RTX: 2**40}
"""Scratch memory. Standard TensorRT tries no kernel that asks for more. RTX refuses an engine of
which one call needs more in all, and what the GPU that will run it has is not known here."""


def compile_engine(
    vendor: Vendor,
    onnx_path: Path,
    *,
    profiles: Sequence[ShapeProfile],
    capabilities: Sequence[str],
    precision: str,
    progress: Progress | None = None,
    expected_plugins: Sequence[str] = (),
    timing_cache: Path | None = None,
) -> bytes:
    """The serialised engine (plan) for ``onnx_path`` and the weights beside it.

    capabilities      what to compile for; standard TensorRT compiles for its GPU whatever it says
    precision         as the graph was built; fp32 is then computed without TF32's shorter products
    progress          called while compiling; what it raises stops the build and is raised here
    expected_plugins  "namespace::name@version" of each plugin that must stand in the engine, and
                      is registered; the functions of other plugin nodes are inlined
    timing_cache      standard TensorRT: measured kernel times, read before and written after

    Nothing is printed. Raises UnsupportedModelError (an operator that TensorRT does not take),
    UsageError (a profile that cannot be) and BackendError (all else, with TensorRT's reason).
    """
    graph = read_graph(onnx_path)
    require_operators(vendor, graph, expected_plugins)
    _require_nodes(graph, expected_plugins)
    logger, messages = logger_for(vendor.module)
    messages.clear()
    plugins.refusals(vendor.module)  # those of earlier builds
    builder = _builder(vendor, logger, messages)
    network = parse(vendor, builder, logger, graph, expected_plugins)
    config = builder.create_builder_config()
    _configure(vendor, config, capabilities, precision)
    for profile in profiles:
        add_profile(builder, config, profile, graph.inputs)
    times = None if vendor.is_rtx else _use_timing_cache(config, timing_cache)
    following = BuildProgress(progress or (lambda _what, _done, _total: None))
    config.progress_monitor = monitor(vendor.module, following)
    messages.clear()
    serialized = builder.build_serialized_network(network, config)
    if following.error is not None:
        raise following.error
    refusals = plugins.refusals(vendor.module)
    if serialized is None:
        why = refusals[0] if refusals else messages.reason
        raise BackendError(f"{vendor.name} {vendor.version} could not compile {onnx_path}: {why}")
    plan = bytes(serialized)
    _check(vendor, plan, capabilities)
    if times is not None:
        _write_timing_cache(config, times)
    following.complete()
    return plan


def _require_nodes(graph: GraphFile, expected_plugins: Sequence[str]) -> None:
    if absent := [plugin for plugin in expected_plugins if plugin not in graph.plugins]:
        raise BackendError(
            f"{graph.path} has no node for the plugin {absent[0]}; it has "
            f"{', '.join(graph.plugins) or 'none'}"
        )


def _builder(vendor: Vendor, logger: Any, messages: Messages) -> Any:
    try:
        return vendor.module.Builder(logger)
    except (TypeError, RuntimeError) as error:  # what the binding makes of a null pointer
        why = messages.reason if messages.errors else " ".join(str(error).split())
        raise BackendError(f"{vendor.name} {vendor.version} cannot compile here: {why}") from None


def _configure(vendor: Vendor, config: Any, capabilities: Sequence[str], precision: str) -> None:
    trt = vendor.module
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES[vendor.name])
    if precision == "fp32":
        config.clear_flag(trt.BuilderFlag.TF32)
    if not vendor.is_rtx:
        return
    config.num_compute_capabilities = len(capabilities)
    for index, capability in enumerate(capabilities):
        if not config.set_compute_capability(capability_value(vendor, capability), index):
            raise BackendError(
                f"{vendor.name} {vendor.version} refused compute capability {capability}"
            )


def _check(vendor: Vendor, plan: bytes, capabilities: Sequence[str]) -> None:
    """BackendError when a plan's own header contradicts what was asked for."""
    found = contradiction(plan, vendor.version, capabilities) if vendor.is_rtx else None
    if found is not None:
        raise BackendError(f"{vendor.name} {vendor.version} gave {found}")


def _use_timing_cache(config: Any, path: Path | None) -> Path | None:
    """Measured kernel times make a second build shorter; a foreign cache is left unused."""
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    config.set_timing_cache(config.create_timing_cache(content), ignore_mismatch=False)
    return path


def _write_timing_cache(config: Any, path: Path) -> None:
    """Only a convenience: a cache that cannot be written is no reason to lose the engine."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(bytes(config.get_timing_cache().serialize()))
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
