"""What the command says of a fleet that does not start."""

from __future__ import annotations

import pytest

from engines.errors import BackendError
from runtime.serve.ray.command import NUM_WAITS, _patiently


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
