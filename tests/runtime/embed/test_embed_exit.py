"""How long the end of a process waits for engines."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest

from runtime.embed import bridge
from runtime.embed.bridge import EXIT_S, EXIT_STEP_S, Bridge


class Closing:
    """A thread that closes a model and is ready at the end of so many waits."""

    num_waits = 0
    most_waits = 0

    def __init__(self, target: Callable[..., None], args: tuple[object, ...], daemon: bool) -> None:
        assert daemon
        assert target
        assert args

    def start(self) -> None:
        pass

    def is_alive(self) -> bool:
        return Closing.num_waits < Closing.most_waits

    def join(self, timeout: float) -> None:
        assert timeout == EXIT_STEP_S
        Closing.num_waits += 1


@pytest.mark.parametrize(("needed", "waited"), [(0, 0), (7, 7), (10**6, EXIT_S / EXIT_STEP_S)])
def test_an_exit_waits_in_steps_so_that_a_pause_of_the_process_costs_one(
    needed: int, waited: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a time of the clock, a process that was stopped for longer left its engines running
    while their libraries were taken down: a crash, or an error of ONNX Runtime printed."""
    monkeypatch.setattr(Closing, "num_waits", 0)
    monkeypatch.setattr(Closing, "most_waits", needed)
    monkeypatch.setattr(bridge, "Thread", Closing)
    monkeypatch.setattr(bridge, "Model", Mock())
    ffi = Mock(NULL=None)
    ffi.string.return_value = b"a bundle"
    ending = Bridge(ffi, Mock())
    for _ in range(2):  # all models have one time together
        ending.model_open(Mock(), None, {})
    ending.stop_all()
    assert Closing.num_waits == round(waited)
