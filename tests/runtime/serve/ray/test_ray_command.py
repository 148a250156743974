"""What the command says of a fleet that does not start."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

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


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is left of a start is ``cluster``."""
    monkeypatch.setattr(command, "require_ray", lambda: None)
    monkeypatch.setattr(command, "build", lambda options: options)


def started(*, quiet: bool = True, said: list[str] | None = None) -> int:
    return run_fleet(
        FleetOptions("any", quiet=quiet),
        Place("127.0.0.1", 0, None),
        on_ready=lambda *_: None,
        say=([] if said is None else said).append,
    )


@pytest.mark.parametrize("is_rays", [False, True])
@pytest.mark.usefixtures("no_ray")
def test_sigterm_while_it_starts_is_as_good_an_end_as_later(
    is_rays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with the exit code 15 of Ray's own handler, a failure to whatever watches it."""
    ended = []

    @contextmanager
    def slow(*_: object) -> Iterator[None]:
        if is_rays:
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        try:
            signal.raise_signal(signal.SIGTERM)
            yield
        finally:
            ended.append("cluster")

    monkeypatch.setattr(command, "cluster", slow)
    before = signal.getsignal(signal.SIGTERM)
    assert started() == 0
    assert ended == ["cluster"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("no_ray")
def test_an_exit_for_another_reason_keeps_its_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: object) -> None:
        sys.exit(3)

    monkeypatch.setattr(command, "cluster", leave)
    with pytest.raises(SystemExit, match="3"):
        started()


@pytest.mark.parametrize(("quiet", "num_lines"), [(False, 1), (True, 0)])
@pytest.mark.usefixtures("no_ray")
def test_it_says_that_it_starts_before_ray_does(
    quiet: bool, num_lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute went by in which only Ray's own warnings stood there."""

    def full(*_: object) -> None:
        raise UsageError("no room")

    monkeypatch.setattr(command, "cluster", full)
    said: list[str] = []
    with pytest.raises(UsageError, match="no room"):
        started(quiet=quiet, said=said)
    assert len(said) == num_lines
    assert all("starting Ray Serve" in line for line in said)
