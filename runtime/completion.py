"""A generated text: on its way to the caller, and as a whole."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from types import TracebackType

from engines.errors import UsageError
from runtime.request import FinishReason, Request
from runtime.sampling.logprobs import TokenLogprobs
from runtime.scheduler import Stats, Ticket
from runtime.text.detok import Detokenizer
from runtime.text.stop import StopText

__all__ = ["Answer", "Completion", "Delta", "TextStream", "TokenLogprobs"]


@dataclass(frozen=True, slots=True)
class Completion:
    """A generated text. ``token_ids`` excludes the prompt and what ended the text.

    ``finish_reason``: "stop" (end of sequence, a stop token or string), "length" (max_tokens),
    "context" (max_len), "cancelled" or "grammar" (what was asked for could not be continued to its
    end; ``note`` says why). ``mode`` is what ran; ``note`` says why, where it is not
    what was asked for. ``logprobs`` are the target's, one entry for each of ``token_ids``, where
    they were asked for. ``stop_reason`` is the stop string or stop token that ended the text;
    None where the model's own end of sequence or a limit did. Text, ids, log-probabilities and
    counts end at one place: a token that a stop string begins inside of is still among them.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    mode: str
    note: str | None
    prompt_tokens: int
    stats: Stats
    logprobs: tuple[TokenLogprobs, ...] | None = None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What has become certain of a text since the last delta: joined, all of them are the
    completion's text, token_ids and logprobs. Text and tokens may come one without the other, as
    where a character is spread over two tokens."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None


class Answer:
    """One request's text as it comes out of the scheduler."""

    def __init__(
        self, request: Request, source: Detokenizer | StopText, on_delta: Callable[[Delta], None]
    ) -> None:
        """``source`` is the request's own ``stop`` where it has one. ``on_delta`` gets each delta
        that is not empty, as soon as it is certain."""
        self.request = request
        self.ticket: Ticket | None = None
        self.is_complete = False
        self.is_cancelled = False  # the caller wants no more of it; it may have no ticket yet
        self._source = source
        self._on_delta = on_delta
        self._num_shown = 0  # tokens
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What ``on_delta`` has got so far."""
        return "".join(self._pieces)

    @property
    def found(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._source.found if isinstance(self._source, StopText) else None

    def take(self, tokens: list[int]) -> None:
        """Tokens that ``Request.commit`` returned; none where only text became certain."""
        source = self._source
        text = source.take() if isinstance(source, StopText) else source.feed(tokens)
        self._show(text, tokens)

    def finish(self) -> None:
        """The request has ended: show what was still held back. Idempotent."""
        if not self.is_complete:
            self.is_complete = True
            source = self._source
            text = source.take() if isinstance(source, StopText) else source.flush()
            self._show(text, self.request.generated[self._num_shown :])

    def mute(self) -> None:
        """The caller's own code failed: bother it with no more text."""
        self._on_delta = lambda _delta: None

    def _show(self, text: str, tokens: list[int]) -> None:
        if not text and not tokens:
            return
        request, first = self.request, self._num_shown
        self._num_shown += len(tokens)
        logprobs = None
        if request.num_logprobs is not None:
            logprobs = tuple(request.logprobs[first : self._num_shown])
        if text:
            self._pieces.append(text)
        try:
            self._on_delta(Delta(text, tuple(tokens), logprobs))
        except StopIteration as error:
            raise UsageError(
                "on_text raised StopIteration; to end a text early, call LLM.cancel"
            ) from error


def completed(
    answer: Answer, mode: str, note: str | None, eos_token_ids: Sequence[int]
) -> Completion:
    """The whole of an answer that is complete and has a ticket. ``mode`` and ``note`` are the
    LLM's; ``eos_token_ids`` are no stops that a caller named."""
    request, ticket = answer.request, answer.ticket
    assert request.finish_reason is not None
    assert ticket is not None
    notes = [note]
    if request.finish_reason is FinishReason.GRAMMAR and request.constraint is not None:
        notes.append(f"the grammar could not be held to: {request.constraint.failure}")
    is_own = request.stop_token in eos_token_ids
    return Completion(
        text=answer.text,
        token_ids=tuple(request.generated),
        finish_reason=request.finish_reason.value,
        mode=mode,
        note="; ".join(filter(None, notes)) or None,
        prompt_tokens=len(request.prompt),
        stats=ticket.stats,
        logprobs=None if request.num_logprobs is None else tuple(request.logprobs),
        stop_reason=answer.found or (None if is_own else request.stop_token),
    )


class TextStream:
    """An iterator over the pieces of one text; each is final.

    Used up or closed, ``completion`` tells the rest. Closing it early, by ``close`` or by leaving
    its ``with``, cancels the request and frees its place.
    """

    def __init__(
        self, pieces: Generator[str, None, None], completion: Callable[[], Completion | None]
    ) -> None:
        self._pieces = pieces
        self._completion = completion

    @property
    def completion(self) -> Completion:
        """Raises UsageError while the text goes on, and for a stream that was refused."""
        completion = self._completion()
        if completion is None:
            raise UsageError(
                "the text is not complete; use the stream up first, or close it (one that was "
                "refused has no text)"
            )
        return completion

    def close(self) -> None:
        self._pieces.close()

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def __enter__(self) -> TextStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
