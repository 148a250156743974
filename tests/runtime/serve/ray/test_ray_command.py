"""What the command says of a fleet that does not start."""

from __future__ import annotations

import pytest

from engines.errors import BackendError
from runtime.serve.ray.command import NUM_WAITS, _patiently, reason_of

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


@pytest.mark.parametrize("num_late", [0, 1, NUM_WAITS - 1])
def test_a_slow_start_is_waited_for(num_late: int) -> None:
    steps = iter([TimeoutError("60 s")] * num_late)

    def step() -> str:
        for late in steps:
            raise late
        return "started"

    assert _patiently(step) == "started"


def test_a_start_that_never_comes_is_an_error_in_the_end() -> None:
    def step() -> str:
        raise TimeoutError("60 s")

    with pytest.raises(BackendError, match="did not start"):
        _patiently(step)
