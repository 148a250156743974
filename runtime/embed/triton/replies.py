"""What comes of a request -> responses.

    the engine loop's thread   says what is new of a text; it must not wait for anybody
    the outbox's thread        alone uses the senders: sends, and looks for cancelled requests

A request gets one response at the end, or, where it streams, one for each new piece of text and one
at the end; or an error. The last one carries the final flag.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from engines.errors import (
    CapacityError,
    MissingDependencyError,
    SsdError,
    UsageError,
    as_line,
)
from runtime.completion import Completion, Delta
from runtime.embed.triton.api import Backend, ResponseSender, Tensor
from runtime.embed.triton.tensors import COUNT, NUMBER, OUTPUTS, TEXT, WHOLE

if TYPE_CHECKING:
    from runtime.engine_loop import Job
    from runtime.sampling.logprobs import TokenLogprobs

LOOK_S = 0.1
"""Seconds between two looks for requests that were cancelled; each costs the server a message."""
ARRAYS: dict[str, Any] = {
    TEXT: np.object_,
    WHOLE: np.int32,
    COUNT: np.uint32,
    NUMBER: np.float32,
}
TYPES = {each.name: ARRAYS[each.data_type] for each in OUTPUTS}

News = Delta | Completion | Exception


class UnavailableError(Exception):
    """The model takes no more requests, now or at all."""


class Reply:
    """One request's way back. What stands above ``sender`` is set by whoever takes the request in,
    the rest is the outbox's."""

    def __init__(self, sender: ResponseSender) -> None:
        self.streams = False
        self.has_place = False
        self.job: Job | None = None
        self.sender = sender
        self.is_unwanted = False
        """The client has cancelled it, or cannot be sent to."""
        self.waiting = Delta("", (), None)
        """Tokens whose text is still to come."""


class Outbox:
    """The thread that sends. ``cancel`` is called for each request that nobody wants any more,
    ``on_closed`` for each whose last response was sent; both in that thread."""

    def __init__(
        self,
        backend: Backend,
        *,
        cancel: Callable[[Reply], None],
        on_closed: Callable[[Reply], None],
    ) -> None:
        self._backend = backend
        self._cancel = cancel
        self._on_closed = on_closed
        self._news: SimpleQueue[tuple[Reply, News | None] | None] = SimpleQueue()
        self._open: set[Reply] = set()
        self._thread = Thread(target=self._run, name="triton outbox", daemon=True)
        self._thread.start()

    def open(self, reply: Reply) -> None:
        """From here on it is looked whether the request was cancelled."""
        self._news.put((reply, None))

    def put(self, reply: Reply, news: News) -> None:
        """More of a text, or its end. From any thread."""
        self._news.put((reply, news))

    def close(self) -> None:
        """Send what there is, and end the thread."""
        self._news.put(None)
        self._thread.join()

    def _run(self) -> None:
        looked = monotonic()
        while True:
            wait_s = max(0.0, looked + LOOK_S - monotonic()) if self._open else None
            with suppress(Empty):
                item = self._news.get(timeout=wait_s)
                if item is None:
                    return
                self._take(*item)
            if monotonic() >= looked + LOOK_S:
                self._look()
                looked = monotonic()

    def _take(self, reply: Reply, news: News | None) -> None:
        if news is None:
            self._open.add(reply)
        elif reply in self._open:  # not one that could not be sent to
            try:
                self._send(reply, news)
            except Exception as error:
                self._give_up(reply, error)

    def _send(self, reply: Reply, news: News) -> None:
        if isinstance(news, Delta):
            if reply.streams and (piece := _joined(reply, news)) is not None:
                self._respond(reply, _of_piece(piece))
            return
        failure = _failure(reply, news)
        if failure is not None:
            self._fail(reply, failure)
        else:
            assert isinstance(news, Completion)
            whole = Delta(news.text, news.token_ids, news.logprobs)
            left = reply.waiting if reply.streams else whole
            self._respond(reply, {**_of_piece(left), **_of_end(news)}, is_last=True)

    def _respond(self, reply: Reply, values: dict[str, Any], *, is_last: bool = False) -> None:
        tensors = [self._tensor(name, value) for name, value in values.items()]
        self._post(reply, self._backend.InferenceResponse(tensors), is_last=is_last)

    def _tensor(self, name: str, value: Any) -> Tensor:
        return self._backend.Tensor(name, np.array(value, TYPES[name]).reshape(-1))

    def _fail(self, reply: Reply, error: Exception) -> None:
        codes = self._backend.TritonError
        if reply.is_unwanted:
            code = codes.CANCELLED
        elif isinstance(error, UnavailableError):
            code = codes.UNAVAILABLE
        elif isinstance(error, UsageError | CapacityError):
            code = codes.INVALID_ARG
        else:
            is_absent = isinstance(error, MissingDependencyError)
            code = codes.UNSUPPORTED if is_absent else codes.INTERNAL
        is_ours = isinstance(error, SsdError | UnavailableError)
        told = str(error) if is_ours else f"internal error: {error!r}"
        if not is_ours:
            self._backend.Logger.log_error(as_line(f"ssd-trt: {told}"))
        response = self._backend.InferenceResponse(error=codes(as_line(told), code))
        self._post(reply, response, is_last=True)

    def _post(self, reply: Reply, response: object, *, is_last: bool) -> None:
        if not is_last:
            reply.sender.send(response)
            return
        self._close(reply)  # whatever comes of it: a sender takes one final response
        reply.sender.send(response, flags=self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _look(self) -> None:
        for reply in [each for each in self._open if not each.is_unwanted]:
            try:
                reply.is_unwanted = reply.sender.is_cancelled()
            except Exception as error:
                self._give_up(reply, error)
                continue
            if reply.is_unwanted:
                self._cancel(reply)

    def _give_up(self, reply: Reply, error: Exception) -> None:
        """The server does not take what is sent: nobody will read the rest."""
        self._backend.Logger.log_error(as_line(f"ssd-trt: a response could not be sent: {error!r}"))
        with suppress(Exception):
            if reply in self._open:
                self._fail(reply, error)
        if reply in self._open:
            self._close(reply)
        reply.is_unwanted = True  # before the cancelling, for one that is still being prepared
        self._cancel(reply)

    def _close(self, reply: Reply) -> None:
        self._open.discard(reply)
        self._on_closed(reply)


def _joined(reply: Reply, delta: Delta) -> Delta | None:
    """What to send now: nothing before there is text, so that no piece is empty."""
    held = reply.waiting
    logprobs = None if delta.logprobs is None else (held.logprobs or ()) + delta.logprobs
    joined = Delta(held.text + delta.text, held.token_ids + delta.token_ids, logprobs)
    reply.waiting = Delta("", (), None) if joined.text else joined
    return joined if joined.text else None


def _failure(reply: Reply, ended: Completion | Exception) -> Exception | None:
    if isinstance(ended, Exception):
        return ended
    if ended.finish_reason != "cancelled":
        return None
    return UnavailableError(
        "the client cancelled the request" if reply.is_unwanted else "the model is being unloaded"
    )


def _of_piece(piece: Delta) -> dict[str, Any]:
    values: dict[str, Any] = {"text_output": piece.text, "num_output_tokens": len(piece.token_ids)}
    if piece.token_ids:
        values["output_ids"] = piece.token_ids
        if piece.logprobs is not None:
            values["output_log_probs"] = _chosen(piece.logprobs)
    return values


def _of_end(done: Completion) -> dict[str, Any]:
    stats = done.stats
    values = {
        "finish_reason": done.finish_reason,
        "stop_reason": None if done.stop_reason is None else str(done.stop_reason),
        "num_input_tokens": done.prompt_tokens,
        "num_cached_tokens": stats.num_cached,
        "acceptance_length": stats.acceptance_length,
        "hit_rate": stats.hit_rate,
        "mode": done.mode,
        "cum_log_probs": None if done.logprobs is None else sum(_chosen(done.logprobs)),
    }
    return {name: value for name, value in values.items() if value is not None}


def _chosen(logprobs: tuple[TokenLogprobs, ...]) -> list[float]:
    return [each.logprob for each in logprobs]
