"""Markers, skips (decided here and nowhere else) and hypothesis profiles."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from plugins.ort import library
from tests.helpers import browser, sanitizer, session_folder

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

NEEDS = {
    "browser": lambda: browser.find_browser() is not None,
    "cmake": lambda: shutil.which("cmake") is not None,
    "curl": lambda: shutil.which("curl") is not None,
    "cuda": lambda: (
        importlib.util.find_spec("cuda") is not None
        and importlib.util.find_spec("cuda.core") is not None
    ),
    "tsan": lambda: sanitizer.prefix() is not None,
    "torch": lambda: (
        importlib.util.find_spec("torch") is not None
        and importlib.util.find_spec("transformers") is not None
    ),
    "gpu": lambda: os.path.exists("/dev/nvidiactl"),
    "llama": lambda: importlib.util.find_spec("llama_cpp") is not None,
    "polygraphy": lambda: importlib.util.find_spec("polygraphy") is not None,
    "ray": lambda: (
        importlib.util.find_spec("ray") is not None
        and importlib.util.find_spec("pyarrow") is not None
    ),
    "rtx": lambda: importlib.util.find_spec("tensorrt_rtx") is not None,
    "nginx": lambda: None not in (shutil.which("nginx"), shutil.which("openssl")),
    "promtool": lambda: shutil.which("promtool") is not None,
    "triton": lambda: shutil.which("tritonserver") is not None,
    "vnni": lambda: library.find().path is not None,
    "systemd": lambda: shutil.which("systemd-analyze") is not None,
}


LONGEST = (
    "runtime/test_exactness_real.py",
    "runtime/test_exactness_toy_law.py",
    "plugins/cuda/test_thread_sanitizer.py",
    "runtime/serve/ray/test_ray_serve.py",
    "runtime/test_exactness_real_fp32.py",
    "runtime/test_exactness_real_texts.py",
    "test_readme.py",
    "runtime/test_exactness_toy.py",
    "runtime/test_exactness_tiny.py",
    "runtime/serve/test_serve_real.py",
    "plugins/cuda/test_kernel_compiler.py",
    "runtime/test_prefix_reuse.py",
    "runtime/test_faults.py",
    "runtime/cli/test_cli_devices.py",
    "runtime/loading/test_gpu_pairs.py",
)
"""The files that take longest, in that order. A file's tests stay in one process: one that is begun
late is still running when the other processes are done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with LONGEST."""
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    for path in order:
        if not path.exists():
            raise pytest.UsageError(f"LONGEST of {__file__} names {path}, which is not there")
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_unconfigure() -> None:
    """What a process that was killed has built; each removes its own where it can."""
    session_folder.sweep()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot run, unless SSD_REQUIRE (e.g. ``gpu,torch``) forbids it."""
    required = set(filter(None, os.environ.get("SSD_REQUIRE", "").split(",")))
    for marker, available in NEEDS.items():
        if item.get_closest_marker(marker) is None or available():
            continue
        if marker in required:
            pytest.fail(f"SSD_REQUIRE asks for {marker}, which this machine lacks")
        pytest.skip(f"needs {marker}")


class _Degraded(logging.Handler):
    """Keeps what is said where a pair gives up its draft."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def may_degrade() -> None:
    """Asked for by tests in which a pair gives up its draft."""


@pytest.fixture(autouse=True)
def _no_draft_is_lost_unseen(request: pytest.FixtureRequest) -> Iterator[None]:
    """A draft with a fault is given up and the texts are right all the same: without this a test
    would pass over any error of the draft's."""
    handler, logger = _Degraded(), logging.getLogger("runtime.lanes")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)
    if handler.lines and "may_degrade" not in request.fixturenames:
        pytest.fail(f"a pair gave up its draft: {handler.lines[0]}")
