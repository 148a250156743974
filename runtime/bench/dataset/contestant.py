"""Who answers the prompts: each mode of a bundle, and what is noted of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from runtime.spec.plan import RoundReport

if TYPE_CHECKING:
    from runtime.llm import LLM
    from runtime.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens that one round gave its caller.

    at_s          when, by ``perf_counter``
    num_tokens    the bonus token included, cut where the text ends
    num_drafted, accepted
                  of what was verified
    hit           whether the outcome before had been prepared; None where nobody prepared it
    mode          what the round ran as
    """

    at_s: float
    num_tokens: int
    num_drafted: int
    accepted: int
    hit: bool | None
    mode: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One contestant's answer to one prompt.

    tokens     ids, without the prompt and what ended the text
    begun_s    when it was asked, by ``perf_counter``
    decode_s   seconds from the end of the prompt to the last token
    blocks     as its tokens came
    """

    tokens: tuple[int, ...]
    begun_s: float
    decode_s: float
    blocks: tuple[Block, ...]

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token, the prompt's reading included; None without a token."""
        return self.blocks[0].at_s - self.begun_s if self.blocks else None

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one block's arrival and the next one's."""
        times = [block.at_s for block in self.blocks]
        return [after - before for before, after in pairwise(times)]


class Contestant(Protocol):
    """One that answers prompts, one at a time."""

    @property
    def name(self) -> str:
        """For the tables; no other contestant has it."""

    @property
    def note(self) -> str | None:
        """Why it does not run as its name says, where that is so; read at the end."""

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
        """Continue a prompt of ids."""


@dataclass(slots=True)
class Listener:
    """Takes in what rounds report; fits ``runtime.scheduler.OnRound``. For one text at a time."""

    blocks: list[Block] = field(default_factory=list)

    def __call__(self, report: RoundReport) -> None:
        now = perf_counter()
        for row in report.rows:
            block = Block(
                now, row.num_emitted, row.num_drafted, row.accepted, row.hit, report.plan.mode
            )
            self.blocks.append(block)


class ModeOfBundle:
    """A bundle in one mode. ``llm`` was opened with ``listener`` as its ``on_round``."""

    def __init__(self, mode: str, llm: LLM, listener: Listener, params: SamplingParams) -> None:
        self.name = mode
        self._llm = llm
        self._listener = listener
        self._params = params

    @property
    def note(self) -> str | None:
        return self._llm.note

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
        """See ``Contestant``."""
        self._listener.blocks.clear()
        begun = perf_counter()
        done = self._llm.generate(prompt, self._params, max_tokens=max_tokens)
        blocks = tuple(block for block in self._listener.blocks if block.num_tokens)
        return Sample(done.token_ids, begun, done.stats.decode_s, blocks)
