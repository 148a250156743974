"""What a stream was given to do: what of it is done, and what is left to give to another stream.

A draft that fails takes the target's stream with it, which waits for the draft's proposals: it
skips all further work, or never gets there. What it had not done by then is done on a new stream;
the worker and its caches do not care which. So every launch notes here that it has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic

from runtime.device.api import Access, Stream


@dataclass(slots=True)
class Job:
    """One launch. ``round_number`` is set where it belongs to a round, and goes with it."""

    work: Callable[[], None]
    reads: Sequence[Access]
    writes: Sequence[Access]
    label: str
    round_number: int | None
    is_done: bool = False


class Journal:
    """The jobs of one stream at a time."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    @property
    def oldest(self) -> Job | None:
        """The first one that is not done: it runs, or is the next to run."""
        while self._jobs and self._jobs[0].is_done:
            self._jobs.popleft()
        return self._jobs[0] if self._jobs else None

    def launch(self, stream: Stream, job: Job) -> None:
        """Queue a job on ``stream`` and note it."""
        _ = self.oldest  # forgets what is done
        stream.launch(partial(_run, job), reads=job.reads, writes=job.writes, label=job.label)
        self._jobs.append(job)

    def undone(self) -> list[Job]:
        """Jobs that have not run, in order; they are taken out. The stream must be closed."""
        jobs = [job for job in self._jobs if not job.is_done]
        self._jobs.clear()
        return jobs


def _run(job: Job) -> None:
    job.work()
    job.is_done = True


class Patience:
    """How long a stream may be at one and the same job while somebody waits for it."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._job: Job | None = None
        self._since_s = 0.0

    def is_over(self, journal: Journal) -> bool:
        """Ask again and again: whether the oldest job has been the same for ``timeout_s``."""
        oldest, now_s = journal.oldest, monotonic()
        if oldest is None or oldest is not self._job:
            self._job, self._since_s = oldest, now_s
            return False
        return now_s - self._since_s >= self.timeout_s
