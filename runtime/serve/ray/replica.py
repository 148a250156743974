"""One engine pair in a process of its own. A plain class: Ray Serve makes a deployment of it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from engines.errors import SsdError
from runtime.async_llm import AsyncLLM
from runtime.request import GenerateOptions
from runtime.sampling.params import SamplingParams
from runtime.serve.ray.cores import keep_to_a_share
from runtime.serve.ray.messages import Begun, Counts, Description, Ended, Failed, Message
from runtime.serve.ray.options import FleetOptions
from runtime.serve.rounds import RoundLog


class EngineReplica:
    """Opens the bundle when it is made, and answers until it is taken away."""

    def __init__(self, options: FleetOptions, num_cores: int | None) -> None:
        """``num_cores``: of this machine, to keep to; None: any."""
        from ray import serve

        self._name: str = serve.get_replica_context().replica_tag
        keep_to_a_share(num_cores)
        self._rounds = RoundLog(num_draft=0)
        self.engines = AsyncLLM.open(
            options.bundle, on_round=self._rounds, **options.engine_options()
        )

    async def describe(self) -> Description:
        """What the ingress has to know to read requests."""
        llm = self.engines.llm
        return Description(
            settings=dataclasses.replace(llm.settings, policy=None, lengths=None),
            mode=llm.mode,
            note=llm.note,
            max_banned_ids=llm.intake.served.max_banned_ids,
            follows_text=llm.intake.served.follows_text,
        )

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        options: GenerateOptions,
        avoid: Sequence[str] = (),  # noqa: ARG002 - for the router, which sees the arguments
    ) -> AsyncIterator[Message]:
        """The text that continues the prompt; its last message is Ended or Failed. A caller that
        is gone ends it."""
        yield Begun(self._name)
        llm = self.engines.llm
        try:
            async with self.engines.deltas(prompt, params, **options) as deltas:
                async for delta in deltas:
                    yield delta
                completion = deltas.completion
            yield Ended(completion, Counts.of(self._rounds), llm.has_lost_draft, llm.note)
        except SsdError as error:
            yield Failed.by(error)

    def check_health(self) -> None:
        """Asked by Ray Serve again and again. Engines that failed, and have done nothing since,
        are not trusted to do it again: after three times Ray Serve replaces the replica."""
        if self.engines.error is not None:
            raise RuntimeError(f"the engines failed: {self.engines.error}")

    def __del__(self) -> None:
        """Called by Ray Serve once the replica has drained."""
        with suppress(AttributeError):  # the bundle did not open
            self.engines.close()
