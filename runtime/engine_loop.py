"""The one thread that steps an LLM's scheduler, so that requests may come from many callers.

    any thread       submit: the request is checked, and queued at the scheduler
    the loop         step, step, ...: texts join and leave between rounds; deltas and ends are
                     handed to their listeners, which must not block
    any thread       cancel: it ends between two rounds

What goes wrong with one request, its listener's errors included, ends that one. What goes wrong
with the engines ends all that were running; the next request finds out whether they go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import TIMEOUT_MAX, Condition, Thread, current_thread
from time import monotonic
from typing import TYPE_CHECKING

from engines.errors import BackendError, SsdError, UsageError
from runtime.completion import Answer, Completion, Delta
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.ticket import Ticket, TicketState

if TYPE_CHECKING:
    from runtime.intake import Prompt
    from runtime.llm import LLM

_LOG = logging.getLogger(__name__)

OnEnd = Callable[[Completion | Exception], None]
"""Called once, in the loop's thread, with what came of a request."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Job:
    """A submitted request; nothing of it is for its submitter but to ``cancel`` it."""

    answer: Answer
    on_end: OnEnd
    failure: Exception | None = None


class EngineLoop:
    """Serves an open LLM, whose own calls are refused until the loop is closed. Closing it does
    not close the LLM."""

    def __init__(self, llm: LLM) -> None:
        """Raises UsageError where the LLM is closed or busy."""
        self._llm = llm
        self._jobs: dict[Ticket, Job] = {}
        self._changed = Condition()
        self._is_closing = False
        self.error: SsdError | None = None
        """What the engines raised last, until a step succeeds again."""
        self._hold = llm.engine.held()
        self._scheduler = self._hold.__enter__()
        # A daemon, so that a loop which nobody closes does not keep the process.
        self._thread = Thread(target=self._run, name="engine loop", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # the system has no thread left
            self._hold.__exit__(None, None, None)
            raise

    @property
    def num_running(self) -> int:
        """Requests that hold a slot."""
        return self._count(is_waiting=False)

    @property
    def num_waiting(self) -> int:
        """Requests that no slot was free for yet."""
        return self._count(is_waiting=True)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        options: GenerateOptions,
        *,
        on_delta: Callable[[Delta], None],
        on_end: OnEnd,
    ) -> Job:
        """Queue a request; it joins as soon as a slot is free, first come, first served.

        Raises UsageError, CapacityError or MissingDependencyError for what cannot be served, and
        UsageError once the loop is being closed.
        """
        answer = self._llm.intake.answer(prompt, params, on_delta, options)
        self._llm.engine.require_usable()
        with self._changed:
            if self._is_closing:
                raise UsageError("this AsyncLLM is closed; open the bundle again")
            # A step may begin it at once; what ends or cancels it takes this lock first.
            job = Job(answer, on_end)
            answer.ticket = self._scheduler.submit(answer.request, partial(self._take, job))
            self._jobs[answer.ticket] = job
            self._changed.notify_all()
        return job

    def cancel(self, job: Job) -> None:
        """End a request, from any thread; it is told with what there is, "cancelled"."""
        with self._changed:
            if (ticket := job.answer.ticket) in self._jobs:
                self._scheduler.cancel(ticket)

    def close(self, *, drain_s: float | None = None) -> None:
        """Take no more requests, let those that there are go on for ``drain_s`` seconds (None: not
        at all), cancel what is left, and end the thread. Idempotent."""
        if current_thread() is self._thread:
            raise UsageError("an engine loop cannot be closed by what listens to it")
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            until = monotonic() + (drain_s or 0.0)
            while self._jobs and (left := until - monotonic()) > 0:
                self._changed.wait(min(left, TIMEOUT_MAX))
            for job in self._jobs.values():
                self.cancel(job)
        self._thread.join()

    def _count(self, *, is_waiting: bool) -> int:
        states = [ticket.state for ticket in self._tickets()]
        return sum((state is TicketState.WAITING) == is_waiting for state in states)

    def _tickets(self) -> list[Ticket]:
        with self._changed:
            return list(self._jobs)

    def _run(self) -> None:
        try:
            while self._wait():
                self._step()
        finally:
            self._hold.__exit__(None, None, None)
            with self._changed:
                self._is_closing = True  # should it end by an error of its own
            del self._scheduler  # so that the engines go when the LLM is closed

    def _wait(self) -> bool:
        """Until there is something to do; False when there will be nothing any more."""
        with self._changed:
            while not self._jobs and not self._is_closing:
                self._changed.wait()
            return bool(self._jobs)

    def _step(self) -> None:
        failure: Exception | None = None
        try:
            self._scheduler.step()
        except Exception as error:
            failure = self._llm.engine.closed_by(error) or error
        except BaseException as error:  # whatever it is: without this thread all wait for ever
            failure = BackendError(f"the engine loop was stopped by {error!r}")
        self.error = failure if isinstance(failure, SsdError) else None
        for ticket in self._scheduler.just_done:
            self._end(ticket, None)
        if failure is not None:
            tickets = self._tickets()
            # Those that came too late for this step go on, unless the failure ends nothing at all.
            for ticket in [each for each in tickets if each.done] or tickets:
                self._end(ticket, failure)

    def _take(self, job: Job, tokens: list[int]) -> None:
        try:
            job.answer.take(tokens)
        except Exception as error:
            self._fail(job, error)

    def _fail(self, job: Job, error: Exception) -> None:
        """The request's own listener failed."""
        job.answer.mute()
        job.failure = error
        self.cancel(job)

    def _end(self, ticket: Ticket, error: Exception | None) -> None:
        with self._changed:
            job = self._jobs.pop(ticket, None)
            self._changed.notify_all()
        if job is None:  # of a call that was interrupted before this loop began
            return
        ticket.on_tokens = None  # leads to this loop and, by the job, back to the ticket
        try:
            job.on_end(error or self._outcome(job))
        except Exception:  # the others have to go on
            _LOG.exception("a listener of the engine loop failed")

    def _outcome(self, job: Job) -> Completion | Exception:
        """Of a request that the engines did not fail."""
        try:
            job.answer.finish()
            return job.failure or self._llm.completion_of(job.answer)
        except Exception as error:
            return error
