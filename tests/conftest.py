"""Markers, skips (decided here and nowhere else) and hypothesis profiles."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers import browser, sanitizer

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
    "rtx": lambda: importlib.util.find_spec("tensorrt_rtx") is not None,
}


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
