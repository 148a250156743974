"""Which cores of its machine a replica has to itself.

Ray counts cores and binds nobody to them, and an engine pins its threads to the first cores that
its process may use: two pairs on one machine would take turns. So each claims a share of them, for
as long as its process lives.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from runtime.device.cores import available_cores

_held: list[int] = []  # descriptors; closed by the end of the process, however it ends


def keep_to_a_share(num_cores: int | None) -> None:
    """Keep this process to ``num_cores`` cores that no other replica has claimed; to all of them
    where it asks for none, or none are left."""
    if num_cores is None or not hasattr(os, "sched_setaffinity"):
        return
    folder = Path(tempfile.gettempdir()) / f"ssd-trt-cores-{os.getuid()}"
    share = claim(available_cores(), num_cores, folder)
    if share is not None:
        os.sched_setaffinity(os.getpid(), share)


def claim(cores: Sequence[int], num_cores: int, folder: Path) -> tuple[int, ...] | None:
    """The first whole share of ``cores`` that is free; None where none is. ``folder`` holds a lock
    for each core."""
    import fcntl

    folder.mkdir(mode=0o700, exist_ok=True)
    for first in range(0, len(cores) - num_cores + 1, num_cores):
        share = tuple(cores[first : first + num_cores])
        files: list[int] = []
        try:
            for core in share:
                files.append(os.open(folder / str(core), os.O_CREAT | os.O_RDWR, 0o600))
                fcntl.flock(files[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for file in files:
                with suppress(OSError):
                    os.close(file)
            continue
        _held.extend(files)
        return share
    return None
