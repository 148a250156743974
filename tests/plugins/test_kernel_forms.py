"""Every kernel has all its forms: none is left out of the registry, the tests or the package."""

from __future__ import annotations

import ctypes
import re
import tomllib
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from plugins.cuda import registry
from plugins.cuda.kernel import host_values, wrong_outputs
from plugins.registry import OPERATORS
from plugins.store import source_files
from plugins.tensorrt import NAMES as LAYERS

ROOT = Path(__file__).parents[2]
PLUGINS = ROOT / "plugins"
SMALL = 400_000
KERNELS = pytest.mark.parametrize("name", registry.NAMES)
_SIZE_OF = re.compile(rb"\0(ssd_\w+)_args_size(?=\0)")
"""A symbol that each entry leaves in the host library."""


def sources() -> dict[str, Path]:
    """The kernel source of each folder that has one."""
    return {each.parent.name: each for each in PLUGINS.glob("**/*.cu")}


def test_every_source_is_in_the_registry() -> None:
    """A kernel outside it is compiled by no test, measured by no script."""
    assert set(sources()) == set(registry.NAMES)
    assert [sources()[each.name] for each in registry.kernels()] == [
        each.source for each in registry.kernels()
    ]


@KERNELS
def test_every_entry_of_a_source_is_declared(name: str, load_host) -> None:
    """And has a host form, whose struct is the one that Python packs."""
    kernel = registry.kernel(name)
    path = load_host(kernel.source, kernel.args).path
    found = {match.decode() for match in _SIZE_OF.findall(path.read_bytes())}
    assert found == set(kernel.entries)
    library = ctypes.CDLL(str(path))
    for entry in kernel.entries:
        assert hasattr(library, entry)
        assert library[f"{entry}_args_size"]() == ctypes.sizeof(kernel.args.struct)


@KERNELS
def test_every_kernel_has_a_reference(name: str) -> None:
    """`reference`, and `sampled` where that is the meaning of a graph's greedy node."""
    module = import_module(f"plugins.{name}.reference")
    assert module.__doc__
    if name in {signature.lower() for signature in OPERATORS}:
        assert import_module(f"plugins.{name}.sampled").__doc__


@KERNELS
def test_every_entry_is_tried(name: str) -> None:
    """By a trial, in one of its types: what no trial launches is never checked on a GPU."""
    kernel = registry.kernel(name)
    tried = {entry for trial in kernel.trials for entry in trial.entries}
    untyped = {_without_type(entry) for entry in kernel.entries}
    assert {_without_type(entry) for entry in tried} == untyped
    assert tried <= set(kernel.entries)


def _without_type(entry: str) -> str:
    return re.sub(r"_(f32|f16|bf16)$", "", entry)


@KERNELS
def test_small_trials_hold_on_the_host(name: str, load_host) -> None:
    """The launches that a GPU is checked with are right, so that a failure there is the GPU's."""
    kernel = registry.kernel(name)
    compiled = load_host(kernel.source, kernel.args)
    trials = [each for each in kernel.trials if each.num_bytes <= SMALL]
    assert trials, "the thread sanitizer needs small trials too"
    for trial in trials:
        case = trial.make(np.random.default_rng(3))
        values, arrays = host_values(case)
        for entry in trial.entries:
            compiled.launch(entry, values, num_blocks=trial.num_blocks, num_threads=1)
        assert wrong_outputs(case, arrays) == [], trial.label


def test_a_graph_node_has_all_four_forms() -> None:
    """Numpy, ONNX function, TensorRT layer, and the kernels that run the layer."""
    launcher = import_module("plugins.launcher")
    names = {f"{each.domain}::{each.name}@{each.version}" for each in OPERATORS.values()}
    assert names == set(LAYERS) == set(launcher.LAYERS)
    for operator in OPERATORS.values():
        assert callable(operator.reference)
        assert operator.name in operator.function_text


def test_the_package_ships_every_kernel_source() -> None:
    """Kernels are compiled where they run: an installed copy without its headers cannot."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["plugins"]
    shipped = {path for pattern in patterns for path in PLUGINS.glob(pattern)}
    needed = {*PLUGINS.glob("**/*.cu"), *PLUGINS.glob("**/*.cuh")}
    needed |= {file for source in sources().values() for file in source_files(source)}
    assert needed <= shipped
    for folder in {path.parent for path in needed}:
        assert (folder / "__init__.py").is_file(), "package data goes with packages only"
