"""What is said of a fleet or a batch that fails: one line, where Ray says a page."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from engines.errors import BackendError, UsageError
from runtime.serve.batch.files import Asked
from runtime.serve.ray.cluster import cluster
from runtime.serve.ray.data import answers_on_ray
from runtime.serve.ray.options import FleetOptions
from runtime.serve.ray.reports import reason_of
from tests.helpers.tiny_bundle import tiny_bundle

FAILED = "Deploying application ssd-trt failed: Failed to update the deployments ['Engines']."
TRACEBACK = """The deployment failed to start 3 times in a row. Error:
ray::ServeReplica:ssd-trt:Engines.initialize_and_get_metadata() (pid=1, ip=192.0.2.2)
  File "runtime/wishes.py", line 54, in require_adaptable
    raise UsageError("--adaptive-length has no effect in mode ar; leave it away")
engines.errors.UsageError: --adaptive-length has no effect in mode ar; leave it away
"""


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([FAILED, "", TRACEBACK], "--adaptive-length has no effect in mode ar; leave it away"),
        ([FAILED, ""], FAILED),
        (["\n", "no cause"], "it does not say why"),
    ],
)
def test_the_reason_is_the_exceptions_own_words(reports: list[str], reason: str) -> None:
    assert reason_of(reports) == reason


class Ray(ModuleType):
    """What the commands call of Ray, where all of it fails with a page."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.data = SimpleNamespace(
            DataContext=SimpleNamespace(get_current=SimpleNamespace),
            ActorPoolStrategy=SimpleNamespace,
            from_items=lambda *_, **__: self,
        )

    def init(self, **_: Any) -> None:
        raise RuntimeError(TRACEBACK)

    def map_batches(self, *_: Any, **__: Any) -> Ray:
        return self

    def iter_rows(self) -> Any:
        raise RuntimeError(TRACEBACK)
        yield


@pytest.fixture(autouse=True)
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = Ray()
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", ray.data)


def test_a_batch_that_ray_data_gives_up_is_one_line() -> None:
    answers = answers_on_ray([Asked("a", "", {})], FleetOptions(str(tiny_bundle().path)))
    with pytest.raises(BackendError, match=r"^Ray Data gave up \(--adaptive-length .*again$"):
        next(answers)


def test_a_cluster_that_cannot_be_reached_is_one_line() -> None:
    options = FleetOptions("b")
    with (
        pytest.raises(UsageError, match=r"^Ray cannot use the cluster h:1 \(--adaptive.*\)$"),
        cluster(options, "h:1"),
    ):
        pass
