"""What the command says of a fleet that does not start."""

from __future__ import annotations

import pytest

from engines.errors import BackendError, UsageError
from runtime.serve.ray import command
from runtime.serve.ray.command import NUM_WAITS, Place, _patiently, run_fleet
from runtime.serve.ray.options import FleetOptions


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


@pytest.mark.parametrize(("quiet", "num_lines"), [(False, 1), (True, 0)])
def test_it_says_that_it_starts_before_ray_does(
    quiet: bool, num_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute went by in which only Ray's own warnings stood there."""

    def full(*_: object) -> None:
        raise UsageError("no room")

    monkeypatch.setattr(command, "require_ray", lambda: None)
    monkeypatch.setattr(command, "build", lambda options: options)
    monkeypatch.setattr(command, "cluster", full)
    said: list[str] = []
    with pytest.raises(UsageError, match="no room"):
        run_fleet(
            FleetOptions("any", quiet=quiet),
            Place("127.0.0.1", 0, None),
            on_ready=lambda *_: None,
            say=said.append,
        )
    assert len(said) == num_lines
    assert all("starting Ray Serve" in line for line in said)
