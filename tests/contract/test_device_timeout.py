"""One contract for every device: a host that does not wait for ever."""

from __future__ import annotations

import pytest

from engines.errors import BackendError
from runtime.device.api import Device, Stream
from tests.helpers.devices import fail_with, launch_all
from tests.helpers.latch import Latch


def test_a_wait_with_a_time_limit_ends_where_the_stream_does_not(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    """A device that hangs must not take the host with it; and what is late may still come."""
    a, b = streams
    log: list[object] = []
    with Latch(device, a):
        launch_all(a, log, [1])
        late, behind = a.record(), None
        b.wait(late)
        behind = b.record()
        assert not late.sync(0.01)
        assert not behind.sync(0.01), "what waits for it is late, too"
        assert log == []
    assert late.sync(60)
    assert behind.sync(60)
    assert log == [1]


def test_a_wait_with_a_time_limit_ends_as_soon_as_the_mark_is_reached(
    device: Device, streams: tuple[Stream, Stream]
) -> None:
    log: list[object] = []
    launch_all(streams[0], log, range(20))
    assert streams[0].record().sync(60)
    assert log == list(range(20))
    assert device.create_event().sync(60), "never recorded: there is nothing to wait for"


def test_a_wait_with_a_time_limit_raises_what_the_stream_failed_with(
    streams: tuple[Stream, Stream],
) -> None:
    streams[0].launch(fail_with(BackendError("gone")))
    event = streams[0].record()
    for _ in range(2):
        with pytest.raises(BackendError, match="gone"):
            event.sync(60)
