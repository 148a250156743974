"""What the server asks of the engines: ``runtime.async_llm.AsyncLLM`` is the one that serves.

Called on the event loop's thread, but for ``Model`` and ``Engines.deltas``, which any thread may
call. Nothing here waits but the iteration.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, Unpack

from engines.errors import SsdError
from engines.manifest import Limits
from runtime.completion import Completion
from runtime.request import GenerateOptions
from runtime.sampling.logprobs import TokenLogprobs
from runtime.sampling.params import SamplingParams

if TYPE_CHECKING:
    from runtime.grammar import Grammar
    from runtime.settings import Settings


class Piece(Protocol):
    """What has become certain of one text since the piece before."""

    @property
    def text(self) -> str: ...
    @property
    def token_ids(self) -> tuple[int, ...]: ...
    @property
    def logprobs(self) -> tuple[TokenLogprobs, ...] | None: ...


class Pieces(Protocol):
    """One text on its way. Forgotten, it ends as if it was cancelled."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    @property
    def completion(self) -> Completion:
        """All of it, once the iteration has ended."""

    def cancel(self) -> None:
        """End it here; the iteration then ends with what there is."""


class Texts(Protocol):
    """What the tokenizer knows of single tokens; safe beside the engines."""

    def token_of(self, token_id: int) -> str | None: ...
    def bytes_of(self, token_id: int) -> bytes: ...

    @property
    def special_ids(self) -> frozenset[int]: ...


class Model(Protocol):
    """What is loaded. ``runtime.llm.LLM`` is one."""

    @property
    def mode(self) -> str: ...
    @property
    def note(self) -> str | None: ...
    @property
    def has_lost_draft(self) -> bool: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def tokenizer(self) -> Texts: ...
    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str) -> list[int]: ...
    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...
    def compile(self, grammar: Grammar) -> None: ...


class Engines(Protocol):
    """A model, and the thread that runs it."""

    @property
    def llm(self) -> Model: ...

    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...

    @property
    def error(self) -> SsdError | None:
        """What the engines raised last; None once they do their work, again or at all."""

    def deltas(
        self,
        prompt: Sequence[int],
        params: SamplingParams = ...,
        **options: Unpack[GenerateOptions],
    ) -> Pieces:
        """The text that continues the prompt. Raises UsageError or CapacityError at once for what
        cannot be served; an engine's error comes out of the iteration."""
