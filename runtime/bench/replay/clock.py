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


@dataclass(frozen=True, slots=True)
class Clock:
    """A device, what lets its calls take their time, and the host's time in seconds."""

    device: Device
    pace: Pace
    now: Callable[[], float]


def open_clock(*, is_real: bool) -> Clock:
    """A new device on its clock; the caller closes it."""
    if is_real:
        return Clock(HostDevice(), take_until, perf_counter)
    device = VirtualDevice()
    clock = device.clock
    return Clock(device, lambda _, seconds: clock.spend(seconds), lambda: clock.host_s)


def take_until(began: float, seconds: float) -> None:
    """Return ``seconds`` after ``began``: asleep at first, then awake without holding the
    interpreter, which the other threads want."""
    end = began + seconds
    rest = end - perf_counter()
    if rest > SPIN_S:
        sleep(rest - SPIN_S)
    while perf_counter() < end:
        sleep(0)
