"""The two clocks of a replay: the machine's, and a simulated one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, sleep

from runtime.backends.drawn import Pace
from runtime.device.api import Device
from runtime.device.host import HostDevice
from runtime.device.virtual import VirtualDevice

SPIN_S = 60e-6
"""The last bit of a wait, spent awake: sleeps end about so much too late (77 us, the median of 300
on two shared cores; with this 20 us). Who stays awake longer is put off by busy neighbours."""
LATE_S = 100e-6
"""Sleeps end up to so much too late."""


@dataclass(slots=True)
class Clock:
    """A device, what lets its calls take their time, and the host's time in seconds. While it
    ``skips``, calls take no time: outcomes do not depend on the clock, but they have to be met
    before the statistics know the law."""

    device: Device
    now: Callable[[], float]
    wait: Pace
    skips: bool = False

    def pace(self, began: float, seconds: float) -> float:
        """See ``runtime.backends.drawn.Pace``."""
        return 0.0 if self.skips else self.wait(began, seconds)


def open_clock(*, is_real: bool) -> Clock:
    """A new device on its clock; the caller closes it."""
    if is_real:
        return Clock(HostDevice(), perf_counter, take_until)
    device = VirtualDevice()
    clock = device.clock

    def spend(_: float, seconds: float) -> float:
        clock.spend(seconds)
        return 0.0

    return Clock(device, lambda: clock.host_s, spend)


def take_until(began: float, seconds: float) -> float:
    """Return ``seconds`` after ``began``: asleep at first, then awake without holding the
    interpreter, which the other threads want. Returns how many seconds too late that is, LATE_S
    at most: what is longer is no sleep's error but another thread, or another program."""
    end = began + seconds
    rest = end - perf_counter()
    if rest <= 0:
        return 0.0
    if rest > SPIN_S:
        sleep(rest - SPIN_S)
    while (now := perf_counter()) < end:
        sleep(0)
    return min(now - end, LATE_S)
