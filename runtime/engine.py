"""The loop that drives a loaded pair: answers in, text out, one call at a time."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from threading import Lock

from engines.errors import BackendError, DeviceError, SsdError, UsageError
from runtime.completion import Answer
from runtime.loading.api import Pair
from runtime.request import whole_number
from runtime.scheduler import Scheduler

_CLOSED = "this LLM is closed; open the bundle again with LLM.open"


class Engine:
    """Owns the pair. All but ``cancel`` and ``notes`` are for one thread at a time."""

    def __init__(self, pair: Pair) -> None:
        # Let go of when it is closed: an LLM may be kept for long, and its memory is for the next.
        self._pair: Pair | None = pair
        self._last_notes: tuple[str | None, str | None] = (None, None)
        self._turn = Lock()
        self._answers: Sequence[Answer] = ()
        self._is_closed = False
        self._process = os.getpid()  # threads do not follow into a fork

    def steps(self, answers: Sequence[Answer]) -> Generator[list[Answer], None, None]:
        """Run the requests of ``answers``. Pauses after each round, with those that have become
        complete by it.

        Closed, or left by any error, it cancels what still runs and frees its slots. Raises
        UsageError when it is begun in the middle of another call, which it would mix with, when
        the LLM is closed, before or meanwhile, and in another process than the one it was opened
        in.
        """
        with self._one_at_a_time() as scheduler:
            try:
                self._answers = list(answers)
                running = {}
                for answer in answers:
                    answer.ticket = scheduler.submit(answer.request, answer.take)
                    running[answer.ticket] = answer
                    if answer.is_cancelled:  # before it had a ticket
                        scheduler.cancel(answer.ticket)
                while running:
                    self._require_own_process()
                    scheduler.step()
                    # Of an interrupted call a text may still be on its way out.
                    done = [running.pop(each) for each in scheduler.just_done if each in running]
                    for answer in done:
                        answer.finish()
                    yield done
            except BaseException as error:
                for answer in answers:
                    answer.mute()
                if self._is_own_process:
                    self._drain(scheduler, answers)
                if (closed := self.closed_by(error)) is not None:
                    raise closed from error
                raise
            finally:
                self._answers = ()

    def pieces(self, answer: Answer, shown: list[str]) -> Generator[str, None, None]:
        """Run one request as its reader asks for text; ``shown`` is where the answer puts it."""

        def run() -> Generator[str, None, None]:
            try:
                yield ""
                with closing(self.steps([answer])) as steps:
                    for _ in steps:
                        while shown:
                            yield shown.pop(0)
            except GeneratorExit:
                answer.request.cancel()
                raise
            finally:
                if answer.request.finish_reason is not None:  # else it was refused
                    answer.finish()

        running = run()
        next(running)  # closing a generator that has not begun runs none of its code
        return running

    @contextmanager
    def held(self) -> Iterator[Scheduler]:
        """The scheduler, for a caller that drives it by itself: other calls are refused meanwhile.
        Raises UsageError as ``steps`` does."""
        with self._one_at_a_time() as scheduler:
            yield scheduler

    @property
    def notes(self) -> tuple[str | None, str | None]:
        """What the user should know of the pair, and why it has no draft any more; once it is
        closed, what they were at last."""
        pair = self._pair
        return self._last_notes if pair is None else (pair.note, pair.scheduler.note)

    def require_usable(self) -> None:
        """Raise UsageError where the LLM is closed, or was opened in another process."""
        self._require_own_process()
        if self._is_closed:
            raise UsageError(_CLOSED)

    def closed_by(self, error: BaseException) -> UsageError | None:
        """What to tell instead of ``error`` where it comes of the LLM being closed meanwhile."""
        if self._is_closed and isinstance(error, BackendError | DeviceError):
            return UsageError("the LLM was closed while this request ran")
        return None

    def cancel(self, index: int | None = None) -> None:
        """End what runs now, or the one at ``index`` of it, from any thread or a callback."""
        number = None if index is None else whole_number(index)
        if index is not None and number is None:
            raise UsageError(f"index is {index!r}, expected the number of a prompt, or None")
        answers = self._answers  # replaced as a whole by the thread that runs them
        self._cancel(answers if number is None else answers[number : number + 1])

    def _cancel(self, answers: Sequence[Answer]) -> None:
        pair = self._pair
        for answer in answers:
            answer.is_cancelled = True
            if answer.ticket is not None and pair is not None:
                pair.scheduler.cancel(answer.ticket)

    def _drain(self, scheduler: Scheduler, answers: Sequence[Answer]) -> None:
        self._cancel(answers)
        with suppress(SsdError):  # of an engine: it is on its way to the caller already
            while scheduler.step():
                pass

    @property
    def _is_own_process(self) -> bool:
        return os.getpid() == self._process

    def _require_own_process(self) -> None:
        if not self._is_own_process:
            raise UsageError("this LLM was opened in another process; open it again here")

    @contextmanager
    def _one_at_a_time(self) -> Iterator[Scheduler]:
        self.require_usable()
        if not self._turn.acquire(blocking=False):
            raise UsageError(
                "this LLM is in the middle of another request and runs one call at a time; wait "
                "for it, close its stream, or ask the AsyncLLM that serves many callers"
            )
        try:
            pair = self._pair
            if pair is None:  # it was closed meanwhile
                raise UsageError(_CLOSED)
            yield pair.scheduler
        finally:
            self._turn.release()

    def close(self) -> None:
        """Free engines, caches and threads; idempotent. A request that runs raises UsageError.

        A draft that hangs, and was given up for it, keeps its thread: nobody is told again.
        """
        self._is_closed = True
        pair = self._pair
        if pair is None or not self._is_own_process:
            return
        try:
            pair.close()
        except DeviceError:
            if pair.scheduler.note is None:
                raise
            pair.close()  # what the first one did not come to
        self._last_notes = self.notes
        self._pair = None
