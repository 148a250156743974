"""The loop that drives a loaded pair: answers in, text out, one call at a time."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from time import perf_counter

from engines.errors import SsdError, UsageError
from runtime.completion import Answer
from runtime.loader import LoadedPair
from runtime.scheduler import RoundReport
from runtime.trace.timeline import Timeline


class Engine:
    """Owns the pair. All but ``cancel`` is for one thread at a time."""

    def __init__(self, pair: LoadedPair) -> None:
        self._pair = pair
        self._turn = Lock()
        self._answers: Sequence[Answer] = ()
        self._is_closed = False

    def steps(self, answers: Sequence[Answer]) -> Generator[list[Answer], None, None]:
        """Run the requests of ``answers``. Pauses after each round, with those that have become
        complete by it.

        Closed, or left by any error, it cancels what still runs and frees its slots. Raises
        UsageError when it is begun in the middle of another call, which it would mix with.
        """
        scheduler = self._pair.scheduler
        with self._one_at_a_time():
            try:
                for answer in answers:
                    answer.ticket = scheduler.submit(answer.request, answer.take)
                self._answers = running = list(answers)
                while running:
                    scheduler.step()
                    done = [answer for answer in running if answer.ticket and answer.ticket.done]
                    running = [answer for answer in running if answer not in done]
                    for answer in done:
                        answer.finish()
                    yield done
            except BaseException:
                for answer in answers:
                    answer.mute()
                self._cancel(answers)
                with suppress(SsdError):  # of an engine: it is on its way to the caller already
                    while scheduler.step():
                        pass
                raise
            finally:
                self._answers = ()

    def cancel(self, index: int | None = None) -> None:
        """End what runs now, or the one at ``index`` of it, from any thread or a callback."""
        answers = self._answers  # replaced as a whole by the thread that runs them
        self._cancel(answers if index is None else answers[index : index + 1])

    def _cancel(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            if answer.ticket is not None:
                self._pair.scheduler.cancel(answer.ticket)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if self._is_closed:
            raise UsageError("this LLM is closed; open the bundle again with LLM.open")
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "this LLM is in the middle of another request and runs one call at a time; wait "
                "for it, close its stream, or open one LLM a thread"
            )
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Free engines, caches and threads; idempotent. A request that runs fails."""
        self._is_closed = True
        self._pair.close()


def mark_round(timeline: Timeline, report: RoundReport) -> None:
    """Put on a timeline how each row's round began; fits ``runtime.scheduler.OnRound``."""
    for row in report.rows:
        if row.hit is not None:
            timeline.moment(
                "hit" if row.hit else "miss",
                perf_counter(),
                round=report.number,
                row=row.slot,
                drafts=row.kind.name.lower(),
                accepted=row.accepted,
            )
