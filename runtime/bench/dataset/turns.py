"""Who answers when: contestants take turns, so that what else the machine does meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from engines.errors import SsdError
from runtime.bench.dataset.contestant import Contestant, Sample
from runtime.bench.dataset.items import Item
from runtime.bench.kind import Show, Tick

WARM_UP_TOKENS = 8

Opener: TypeAlias = Callable[[], AbstractContextManager[Contestant]]
Block: TypeAlias = Sequence[int]
"""Places of the prompts that a contestant answers in one turn."""


@dataclass(frozen=True, slots=True)
class Facts:
    """About a contestant, when it had answered; see ``Contestant``."""

    description: str
    is_peer: bool
    note: str | None


@dataclass(slots=True)
class Answered:
    """What there is, complete or not.

    samples   by contestant and place: the answers to that prompt, one a pass
    facts     by contestant
    at_turn   whose turn it was last
    ended_by  what came before the last answer: ctrl-C, or the failure of the one at turn
    """

    samples: dict[str, list[list[Sample]]]
    facts: dict[str, Facts] = field(default_factory=dict)
    at_turn: str = ""
    ended_by: KeyboardInterrupt | SsdError | None = None

    @property
    def baseline(self) -> list[list[Sample]]:
        """Of the first contestant, which the others are compared with."""
        return next(iter(self.samples.values()))

    @property
    def num_done(self) -> int:
        """Answers."""
        return sum(len(each) for of_one in self.samples.values() for each in of_one)

    @property
    def places(self) -> list[int]:
        """Prompts that every contestant has answered, in order."""
        columns = zip(*self.samples.values(), strict=True)
        return [place for place, column in enumerate(columns) if all(column)]


def single_prompts(items: Sequence[Item]) -> list[Block]:
    """A turn is one prompt."""
    return [[place] for place in range(len(items))]


def whole_categories(items: Sequence[Item]) -> list[Block]:
    """A turn is a category."""
    blocks: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        blocks.setdefault(item.category, []).append(place)
    return list(blocks.values())


def take_turns(
    openers: Mapping[str, Opener],
    prompts: Sequence[Sequence[int]],
    blocks: Sequence[Block],
    max_tokens: int,
    show: Show,
    *,
    keeps_open: bool,
    repeats: int = 1,
) -> Answered:
    """Let each contestant answer each prompt, block by block, ``repeats`` times over. Another one
    begins each time: who comes later finds the machine warmer, and other pages in its caches.

    ``keeps_open``: all are open from the first prompt to the last, one answers and the others
    sleep; else one is open at a time, for its turn.

    A peer's answers are cut to the number of tokens that the first contestant gave.
    Ctrl-C ends it early, with what there is, and so does one that fails once all are loaded:
    what its engine shares with the others may be broken, too.
    """
    names = list(openers)
    done = Answered({name: [[] for _ in prompts] for name in names})
    with ExitStack() as all_open:
        opened = {}
        if keeps_open:
            with show("loading", len(names)) as tick:
                for number, name in enumerate(names, start=1):
                    opened[name] = all_open.enter_context(_warm(openers[name], prompts[0]))
                    tick(number, name)
        with _kept(done), show("answers", len(prompts) * len(names) * repeats) as tick:
            turns = [(each, block) for each in range(repeats) for block in blocks]
            for turn, (number_of_pass, block) in enumerate(turns):
                # A prompt meets another order in each pass, however many prompts there are.
                for name in _rotated(names, turn + number_of_pass):
                    done.at_turn = name
                    at_hand: AbstractContextManager[Contestant] = (
                        nullcontext(opened[name])
                        if keeps_open
                        else _warm(openers[name], prompts[block[0]])
                    )
                    with at_hand as contestant:
                        _answer(contestant, block, prompts, max_tokens, done, tick)
    _cut_peers(done)
    return done


@contextmanager
def _kept(done: Answered) -> Iterator[None]:
    """What ends the body is written down, and what was answered until then is kept."""
    try:
        yield
    except (KeyboardInterrupt, SsdError) as cause:
        done.ended_by = cause


def _answer(
    contestant: Contestant,
    block: Block,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    done: Answered,
    tick: Tick,
) -> None:
    name = contestant.name
    try:
        for place in block:
            plain = done.baseline[place]
            is_known = contestant.is_peer and plain
            sample = contestant.answer(
                prompts[place], len(plain[0].tokens) if is_known else max_tokens
            )
            done.samples[name][place].append(sample)
            tick(done.num_done, f"{name}, {len(sample.tokens)} tokens")
    finally:
        done.facts[name] = Facts(contestant.description, contestant.is_peer, contestant.note)


def _cut_peers(done: Answered) -> None:
    """Each to as many tokens as the first contestant gave, which may have answered after it."""
    for name, facts in done.facts.items():
        if facts.is_peer:
            done.samples[name] = [
                [sample.first(len(plain[0].tokens)) if plain else sample for sample in ours]
                for ours, plain in zip(done.samples[name], done.baseline, strict=True)
            ]


def _rotated(names: Sequence[str], turn: int) -> Sequence[str]:
    first = turn % len(names)
    return (*names[first:], *names[:first])


@contextmanager
def _warm(opener: Opener, prompt: Sequence[int]) -> Iterator[Contestant]:
    """A contestant that has answered before: the first calls of an engine prepare things."""
    with opener() as contestant:
        contestant.answer(prompt, WARM_UP_TOKENS)
        yield contestant
