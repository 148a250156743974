"""Many replicas as what the server calls its engines: one text is asked of one replica, and of
another where that one is lost. Knows nothing of Ray: what asks a replica is handed in.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Protocol, Unpack

from engines.bundle import open_bundle
from engines.errors import SsdError, UsageError
from engines.manifest import Limits
from runtime.completion import Completion, Delta
from runtime.grammar import Grammar
from runtime.intake import Intake, Served
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.serve.api import Pieces
from runtime.serve.asked import Asked
from runtime.serve.config import ServeConfig
from runtime.serve.errors import ApiError
from runtime.serve.gate import Gate
from runtime.serve.ray.affinity import key_of
from runtime.serve.ray.messages import (
    ENGINE_ERRORS,
    Begun,
    Description,
    Ended,
    Failed,
    FleetRounds,
    Message,
)
from runtime.serve.ray.retry import Attempts
from runtime.serve.service import Service
from runtime.settings import Settings
from runtime.stats import Stats


class Response(Protocol):
    """What one replica answers; Ray Serve's ``DeploymentResponseGenerator`` is one."""

    def __aiter__(self) -> AsyncIterator[Message]: ...
    def cancel(self) -> None: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What a replica is asked for, the same at every attempt: the seed is in ``params``."""

    prompt: Sequence[int]
    params: SamplingParams
    options: GenerateOptions
    key: str
    """Of ``runtime.serve.ray.affinity``."""


class Ask(Protocol):
    """Asks a replica, one of those not to be ``avoid``-ed if there is any."""

    def __call__(self, question: Question, *, avoid: Sequence[str]) -> Response: ...


class FleetModel:
    """What is loaded in all replicas, without the engines: the tokenizer and the limits."""

    def __init__(self, bundle: Path | str, described: Description) -> None:
        self._bundle = open_bundle(bundle)
        served = Served(described.max_banned_ids, described.follows_text)
        self.intake = Intake(self._bundle, served)
        self.mode = described.mode
        self.note = described.note
        """Of the replica whose text ended last."""
        self.settings: Settings = described.settings
        self.tokenizer = self.intake.tokenizer
        self.has_lost_draft = False
        """Of the replica that answered last."""

    @property
    def limits(self) -> Limits:
        return self._bundle.manifest.limits

    @property
    def has_chat_template(self) -> bool:
        return self.intake.prompts.has_chat_template

    def encode(self, text: str) -> list[int]:
        return self.intake.prompts.encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.intake.prompts.encode_chat(messages)

    def compile(self, grammar: Grammar) -> None:
        self.intake.compiler.start(grammar)


class Fleet:
    """Fits ``runtime.serve.api.Engines``."""

    def __init__(
        self,
        model: FleetModel,
        rounds: FleetRounds,
        ask: Ask,
        *,
        is_loss: Callable[[BaseException], bool],
    ) -> None:
        """``is_loss``: whether what a response raised means that its replica is gone."""
        self.llm = model
        self.rounds = rounds
        self.ask = ask
        self.is_loss = is_loss
        self.error: SsdError | None = None  # of a replica; another one answers
        self.open: set[FleetText] = set()

    @property
    def num_running(self) -> int:
        """Texts that some replica has."""
        return sum(each.has_place for each in self.open)

    @property
    def num_waiting(self) -> int:
        """Texts that no replica has taken yet."""
        return sum(not each.has_place for each in self.open)

    def deltas(
        self,
        prompt: Sequence[int],
        params: SamplingParams = SamplingParams(),  # noqa: B008 - frozen
        **options: Unpack[GenerateOptions],
    ) -> FleetText:
        return self.begin(prompt, params, options, key=key_of(None, prompt), is_streamed=True)

    def begin(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        options: GenerateOptions,
        *,
        key: str,
        is_streamed: bool,
    ) -> FleetText:
        """A text that is asked for when it is iterated over. ``is_streamed``: its pieces are
        shown as they come, so that none may be taken back. From any thread. Raises as
        ``AsyncLLM.deltas`` does for what no replica could serve."""
        self.llm.intake.answer(prompt, params, lambda _delta: None, options)
        question = Question(prompt, params, options, key)
        return FleetText(self, question, Attempts(may_restart=not is_streamed))


class FleetText:
    """One text on its way: ``runtime.serve.api.Pieces``."""

    def __init__(self, fleet: Fleet, question: Question, attempts: Attempts) -> None:
        self.has_place = False
        self._fleet = fleet
        self._question = question
        self._attempts = attempts
        self._response: Response | None = None
        self._cancelled = asyncio.Event()
        self._deltas: list[Delta] = []
        self._completion: Completion | None = None

    @property
    def completion(self) -> Completion:
        if self._completion is None:
            raise UsageError("the text is not complete; use the stream up first")
        return self._completion

    def cancel(self) -> None:
        self._cancelled.set()
        if self._response is not None:
            self._response.cancel()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        self._fleet.open.add(self)
        try:
            while not self._cancelled.is_set() and self._completion is None:
                async with aclosing(self._attempt()) as deltas:
                    async for delta in deltas:
                        yield delta
            if self._completion is None:
                self._completion = self._cut()
        finally:
            self._fleet.open.discard(self)

    async def _attempt(self) -> AsyncGenerator[Delta, None]:
        """Ask one replica, to the end of the text or the replica's own."""
        self._deltas.clear()
        self.has_place, replica = False, None
        response = self._fleet.ask(self._question, avoid=tuple(self._attempts.avoided))
        self._response = response
        try:
            async for message in response:
                match message:
                    case Begun():
                        self.has_place, replica = True, message.replica
                    case Delta():
                        self._deltas.append(message)
                        self._fleet.rounds.piece(len(message.token_ids))
                        yield message
                    case Ended():
                        self._end(message, replica)
                    case Failed():
                        raise message.as_error()
            if self._completion is None:
                raise BrokenOffError
        except Exception as error:
            await self._failed(error, replica)
        finally:
            self._response = None
            if self._completion is None:  # its reader is gone, or it will be asked for anew
                response.cancel()

    def _end(self, ended: Ended, replica: str | None) -> None:
        self._completion = ended.completion
        model = self._fleet.llm
        model.has_lost_draft, model.note = ended.has_lost_draft, ended.note
        if replica is not None:
            self._fleet.rounds.take(replica, ended.counts)

    async def _failed(self, error: Exception, replica: str | None) -> None:
        """Returns where the text is to be asked for again."""
        if self._cancelled.is_set():
            return
        is_ill = isinstance(error, ENGINE_ERRORS)
        is_lost = isinstance(error, BrokenOffError) or self._fleet.is_loss(error)
        if not is_ill and not is_lost:
            raise error
        has_begun = any(each.text or each.logprobs for each in self._deltas)  # what is shown
        pause_s = self._attempts.lost(
            replica if is_ill else None, was_taken=replica is not None, has_begun=has_begun
        )
        if pause_s is not None:
            self.has_place = False
            with suppress(TimeoutError):
                await asyncio.wait_for(self._cancelled.wait(), pause_s)
        elif is_ill:
            raise error
        else:
            raise replica_lost() from error

    def _cut(self) -> Completion:
        """What there is of a text that was ended here: the replica's own account is lost."""
        ids = tuple(token for each in self._deltas for token in each.token_ids)
        entries = tuple(entry for each in self._deltas for entry in each.logprobs or ())
        return Completion(
            text="".join(each.text for each in self._deltas),
            token_ids=ids,
            finish_reason="cancelled",
            mode=self._fleet.llm.mode,
            note=self._fleet.llm.note,
            prompt_tokens=len(self._question.prompt),
            stats=Stats(
                num_tokens=len(ids),
                num_rounds=0,
                num_emitted=0,
                num_hits=None,
                histogram=(),
                prompt_s=0.0,
                decode_s=0.0,
                verify_s=0.0,
                draft_s=0.0,
            ),
            logprobs=None if self._question.options.get("logprobs") is None else entries,
        )


class BrokenOffError(Exception):
    """A replica's messages ended, and its text had not."""


def replica_lost() -> ApiError:
    return ApiError(
        500,
        "the replica that was to write this answer was lost; what came of it is not complete: "
        "ask again",
        kind="server_error",
        code="replica_lost",
    )


class FleetService(Service):
    """The server's, where a request says which replica it belongs to."""

    def __init__(self, fleet: Fleet, config: ServeConfig, *, num_replicas: int) -> None:
        """``num_replicas``: at most; the gate lets in what all of them decode at once."""
        super().__init__(fleet, fleet.rounds, config)
        self._fleet = fleet
        self.gate = Gate(
            max_batch=fleet.llm.settings.max_batch * num_replicas, max_waiting=config.max_waiting
        )

    def begin(
        self, asked: Asked, ids: Sequence[int], law: SamplingParams, options: GenerateOptions
    ) -> Pieces:
        body = asked.body
        return self._fleet.begin(
            ids,
            law,
            options,
            key=key_of(body, ids),
            is_streamed=body is None or bool(body.stream),
        )
