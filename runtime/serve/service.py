"""What the routes share: the engines, the gate, the counts, and how a request becomes texts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Literal, Protocol

from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.serve.api import Engines, Model, Pieces
from runtime.serve.asked import Asked
from runtime.serve.config import ServeConfig
from runtime.serve.errors import ApiError, blamed, draining, model_not_found
from runtime.serve.gate import Gate
from runtime.serve.generation import Generation, Timing
from runtime.serve.rounds import Hits, RoundLog

GRACE_S = 5.0
"""For texts that were told to end, to end, and for their last chunk to be sent."""

Encode = Callable[[], list[list[int]]]


class Listener(Protocol):
    """Told of each request's end (``runtime.serve.http.metrics``)."""

    def __call__(self, generation: Generation) -> None: ...


class Service:
    """One server. On the event loop's thread only."""

    def __init__(self, engines: Engines, rounds: RoundLog, config: ServeConfig) -> None:
        self.engines = engines
        self.rounds = rounds
        self.config = config
        model = self.model
        self.gate = Gate(max_batch=model.settings.max_batch, max_waiting=config.max_waiting)
        self.hits = Hits()
        self.num_prompt_tokens = self.num_cached_tokens = self.num_generated_tokens = 0
        # Zeros where a first rise must not go unseen, and by HTTP status; 0: the client went away.
        self.endings = Counter(dict.fromkeys(("stop", "length", "cancelled", "error"), 0))
        self.responses = Counter(dict.fromkeys((0, 200, 400, 401, 429, 500, 503, 504), 0))
        self.listeners: list[Listener] = []
        self._running: set[Generation] = set()

    @property
    def model(self) -> Model:
        return self.engines.llm

    @property
    def state(self) -> Literal["ready", "draining", "failed"]:
        """Whether to send it requests. One that failed still takes them: engines may recover, and
        if not each request is told what is wrong."""
        if self.engines.error is not None:
            return "failed"
        return "draining" if self.gate.is_draining else "ready"

    @property
    def mode_in_force(self) -> str:
        """How the last round was decoded; before there was one, what was asked for."""
        last = self.rounds.last
        return self.model.mode if last is None else last.plan.mode

    @property
    def why(self) -> str:
        """Why rounds are as they are, in a line: the policy's own words where there is one."""
        model = self.model
        of_policy: str | None = getattr(model.settings.policy, "note", None)
        return of_policy or model.note or f"{model.mode} was asked for"

    def check(self, model_name: str | None) -> None:
        """Raises ApiError unless a request for that model can be taken."""
        if model_name is not None and model_name != self.config.model_name:
            raise model_not_found(model_name, self.config.model_name)
        if self.gate.is_draining:
            raise draining()

    async def generate(self, asked: Asked, num_prompts: int, encode: Encode) -> Generation:
        """Texts for all prompts: choice ``p * n + i`` is the i-th of prompt p.

        ``encode`` makes the prompts' ids. Raises ApiError, or UsageError and CapacityError, for
        what cannot be served.
        """
        timing = Timing(perf_counter())
        num_choices = num_prompts * len(asked.laws)
        if num_choices > self.config.max_choices:
            raise ApiError(
                400,
                f"the request asks for {num_choices} answers (prompts x n); this server gives at "
                f"most {self.config.max_choices} a request",
                code="too_many_choices",
                param="n",
            )
        place = self.gate.admit(num_choices)
        streams: list[Pieces] = []
        try:
            # Off the event loop: long prompts, grammars and lists of words take their time.
            prompt_lens = await asyncio.to_thread(self._begin_all, asked, encode, streams)
            if self.gate.is_draining:  # meanwhile
                raise draining()
        except BaseException:
            for stream in streams:
                stream.cancel()
            place.leave()
            raise
        generation = Generation(
            streams,
            place,
            timing,
            prompt_lens=prompt_lens,
            timeout_s=self.config.request_timeout_s,
            on_close=self._ended,
        )
        self._running.add(generation)
        return generation

    def _begin_all(self, asked: Asked, encode: Encode, streams: list[Pieces]) -> list[int]:
        """Begin all texts of a request; the prompts' lengths. What has begun stands in ``streams``
        also where a later one is refused."""
        if asked.grammar is not None:
            with blamed(asked.grammar_name):
                self.model.compile(asked.grammar)
        with blamed(asked.prompt_name):
            prompts = encode()
        options = [asked.for_prompt(ids, self.model.limits.max_len) for ids in prompts]
        for ids, each in zip(prompts, options, strict=True):
            for law in asked.laws:
                streams.append(self.begin(asked, ids, law, each))  # noqa: PERF401 - see above
        return [len(ids) for ids in prompts]

    def begin(
        self,
        asked: Asked,  # noqa: ARG002 - for those who choose among engines
        ids: Sequence[int],
        law: SamplingParams,
        options: GenerateOptions,
    ) -> Pieces:
        """Begin one text of a request. Called in a thread of its own, not the event loop's."""
        return self.engines.deltas(ids, law, **options)

    def _ended(self, generation: Generation) -> None:
        self._running.discard(generation)
        for completion in generation.completions:
            if completion is None:
                continue
            self.endings[completion.finish_reason] += 1
            self.num_generated_tokens += len(completion.token_ids)
            self.hits.add(completion.stats)
        self.num_prompt_tokens += generation.num_prompt_tokens
        self.num_cached_tokens += generation.num_cached_tokens
        missing = generation.completions.count(None)
        if missing:
            self.endings["error" if generation.error is not None else "cancelled"] += missing
        for listen in self.listeners:
            listen(generation)

    async def drain(self, timeout_s: float) -> bool:
        """Take no more requests and let those that run come to their end; after ``timeout_s``
        they are ended where they are. Whether all were complete."""
        self.gate.is_draining = True
        try:
            await asyncio.wait_for(self.gate.wait_until_empty(), timeout_s)
        except TimeoutError:
            await self.abort()
            return False
        return True

    async def abort(self) -> None:
        """End all that runs, with what there is."""
        for generation in list(self._running):
            generation.abort()
        try:
            await asyncio.wait_for(self.gate.wait_until_empty(), GRACE_S)
        except TimeoutError:  # somebody does not read: the connection is cut
            for generation in list(self._running):
                generation.close()


def encoder(
    model: Model, prompt: str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
) -> tuple[int, Encode]:
    """How many prompts a completion's ``prompt`` is, and what makes their ids."""
    prompts: list[str | Sequence[int]] = []
    if isinstance(prompt, str):
        prompts.append(prompt)
    elif ids := [each for each in prompt if isinstance(each, int)]:
        prompts.append(ids)
    else:
        prompts.extend(each for each in prompt if not isinstance(each, int))
    return len(prompts), partial(_encode_all, model, prompts)


def _encode_all(model: Model, prompts: Sequence[str | Sequence[int]]) -> list[list[int]]:
    return [model.encode(each) if isinstance(each, str) else list(each) for each in prompts]


def device_names(model: Model) -> tuple[str, ...]:
    """The devices that the engines run on, each once, the target's first."""
    devices = model.settings.placement.devices
    used = (devices.target,) if model.mode == "ar" else (devices.target, devices.draft)
    return tuple(dict.fromkeys(map(str, used)))
