"""Who answers the prompts: each mode of a bundle, and what is noted of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundReport

if TYPE_CHECKING:
    from runtime.llm import LLM
    from runtime.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens that one round gave its caller.

    at_s          when, by ``perf_counter``
    num_tokens    bonus token and end of text included, cut behind it
    num_drafted, accepted
                  of what was verified, drafts behind the end of the text left out
    hit           whether the outcome before had been prepared; None where nobody prepared it
    mode          what the round ran as
    is_lookup     its drafts were copied from the text, not made by the draft
    """

    at_s: float
    num_tokens: int
    num_drafted: int
    accepted: int
    hit: bool | None
    mode: str
    is_lookup: bool = False


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
    def num_emitted(self) -> int:
        """Tokens that were decoded: those of the text, and the one that ended it."""
        return sum(block.num_tokens for block in self.blocks)

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token, the prompt's reading included; None without a token."""
        return self.blocks[0].at_s - self.begun_s if self.blocks else None

    @property
    def prompt_s(self) -> float | None:
        """Seconds until decoding began; None without a token."""
        return self.blocks[-1].at_s - self.decode_s - self.begun_s if self.blocks else None

    @property
    def whole_s(self) -> float:
        """Seconds from the request to the last token."""
        return self.blocks[-1].at_s - self.begun_s if self.blocks else 0.0

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each emitted token behind the first; None for fewer than two."""
        if self.num_emitted < 2:
            return None
        return (self.blocks[-1].at_s - self.blocks[0].at_s) / (self.num_emitted - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one block's arrival and the next one's."""
        times = [block.at_s for block in self.blocks]
        return [after - before for before, after in pairwise(times)]

    def first(self, num_tokens: int) -> Sample:
        """As it was when it had so many tokens; for samples whose blocks hold one each."""
        if num_tokens >= len(self.tokens):
            return self
        kept = self.blocks[:num_tokens]
        spared_s = self.blocks[-1].at_s - kept[-1].at_s if kept else self.decode_s
        return replace(
            self, tokens=self.tokens[:num_tokens], decode_s=self.decode_s - spared_s, blocks=kept
        )


class Contestant(Protocol):
    """One that answers prompts, one at a time."""

    @property
    def name(self) -> str:
        """For the tables; no other contestant has it."""

    @property
    def is_peer(self) -> bool:
        """Another engine: it writes on until ``max_tokens``, a token a block, and nobody demands
        that its tokens equal the baseline's."""

    @property
    def description(self) -> str:
        """What runs, on how many threads."""

    @property
    def note(self) -> str | None:
        """Why it does not run as its name says, where that is so; read at the end."""

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
        """Continue a prompt of ids, which says nothing about those before it."""


@dataclass(slots=True)
class Listener:
    """Takes in what rounds report; fits ``runtime.scheduler.OnRound``. For one text at a time."""

    blocks: list[Block] = field(default_factory=list)

    def __call__(self, report: RoundReport) -> None:
        now = perf_counter()
        for row in report.rows:
            # The text ended with an accepted draft: those behind it were drafts of nothing.
            ended = row.num_emitted <= row.accepted
            block = Block(
                at_s=now,
                num_tokens=row.num_emitted,
                num_drafted=row.num_emitted if ended else row.num_drafted,
                accepted=row.num_emitted if ended else row.accepted,
                hit=row.hit,
                mode=report.plan.mode,
                is_lookup=row.kind is ProposalKind.LOOKUP,
            )
            self.blocks.append(block)


class ModeOfBundle:
    """A bundle in one mode. ``llm`` was opened with ``listener`` as its ``on_round``."""

    is_peer = False

    def __init__(self, name: str, llm: LLM, listener: Listener, params: SamplingParams) -> None:
        self.name = name
        self._llm = llm
        self._listener = listener
        self._params = params

    @property
    def description(self) -> str:
        placement = self._llm.settings.placement
        target, draft = placement.target_cores, placement.draft_cores
        sides = {"target": target} if placement.mode == "ar" else {"target": target, "draft": draft}
        if len(sides) > 1 and target == draft:
            sides = {"target and draft in turn": target}
        shares = (f"{side} {len(cores) or 'on a GPU'}" for side, cores in sides.items())
        return "threads: " + ", ".join(shares)

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
