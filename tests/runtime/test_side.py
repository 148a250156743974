"""What a side of a pair puts off is done in front of what is launched next, and once."""

from __future__ import annotations

import numpy as np

from runtime.device.seeded import SeededDevice, lazy
from runtime.side import Side


def test_work_put_off_runs_behind_the_waits_and_in_front_of_the_next_launch() -> None:
    """A commit that came behind the next preparation would move rows that were overwritten."""
    device, log = SeededDevice(lazy), []
    caches = device.allocate("caches", (1,), np.dtype(np.int64))
    side = Side(device.create_stream("draft"), object(), caches, (), ())
    other = device.create_stream("other")
    side.put_off(lambda: log.append("put off"), "commit")
    other.launch(lambda: log.append("waited for"))
    side.stream.wait(other.record())
    for number in range(2):
        side.launch(lambda number=number: log.append(number), "work")
    side.stream.sync()
    assert log == ["waited for", "put off", 0, 1]
