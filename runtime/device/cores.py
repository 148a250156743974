"""Which CPU cores this process may use, and who gets which."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engines.errors import DeviceError

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class CoreSplit:
    """Cores for the two engines; `is_shared` when there is one core for both."""

    target_cores: tuple[int, ...]
    draft_cores: tuple[int, ...]
    is_shared: bool


def available_cores() -> tuple[int, ...]:
    """The cores the process may run on (its affinity, within its cpuset), ascending."""
    if hasattr(os, "sched_getaffinity"):
        # By process, not by calling thread: a pinned thread may still start unpinned ones.
        return tuple(sorted(os.sched_getaffinity(os.getpid())))
    return tuple(range(os.cpu_count() or 1))


def split_cores(cores: Sequence[int]) -> CoreSplit:
    """The last core for the draft, all others for the target; one core serves both.

    Raises DeviceError for no core at all.
    """
    if not cores:
        raise DeviceError("no cores to split between target and draft; give at least one")
    ordered = tuple(sorted(set(cores)))
    if len(ordered) == 1:
        return CoreSplit(ordered, ordered, is_shared=True)
    return CoreSplit(ordered[:-1], ordered[-1:], is_shared=False)


def cpu_quota(root: Path = _CGROUP_ROOT, membership: Path = _MEMBERSHIP) -> float | None:
    """How many cores' worth of time the container grants the process; None without a limit.

    The smallest quota of the process's control groups and their parents counts, in version 2
    (`cpu.max`) and version 1 (`cpu.cfs_quota_us`). `root` is where control groups are mounted,
    `membership` the process's list of groups. Groups that are not visible are passed over.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            # Version 2 alone, or beside version 1 in a folder of its own.
            for mount in (root, root / "unified"):
                quotas += [_quota_v2(folder) for folder in _with_parents(mount, group)]
        elif "cpu" in controllers.split(","):
            for mount in (root / "cpu", root / controllers):
                quotas += [_quota_v1(folder) for folder in _with_parents(mount, group)]
    smallest = min(quotas, default=float("inf"))
    return None if smallest == float("inf") else smallest


def _with_parents(mount: Path, group: str) -> list[Path]:
    relative = PurePosixPath(group.lstrip("/"))
    return [mount / folder for folder in (relative, *relative.parents)]


def _quota_v2(folder: Path) -> float:
    return _ratio(*_words(folder / "cpu.max"))


def _quota_v1(folder: Path) -> float:
    return _ratio(*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us"))


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _ratio(*words: str) -> float:
    """Quota over period in cores; infinite when it is absent, `max` or -1."""
    if len(words) != 2 or words[0] in ("max", "-1"):
        return float("inf")
    return int(words[0]) / int(words[1])
