"""Who answers when: contestants take turns, so that what else the machine does meets all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

from runtime.bench.dataset.contestant import Contestant, Sample
from runtime.bench.dataset.items import Item
from runtime.bench.kind import Show

WARM_UP_TOKENS = 8

Opener: TypeAlias = Callable[[], AbstractContextManager[Contestant]]
Block: TypeAlias = Sequence[int]
"""Places of the prompts that a contestant answers in one turn."""


@dataclass(frozen=True, slots=True)
class Answered:
    """By contestant: its answers, one to each prompt in their order, and why it did not run as its
    name says, where that is so."""

    answers: dict[str, list[Sample]]
    notes: dict[str, str]


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
) -> Answered:
    """Let each contestant answer each prompt, block by block. Another one begins each time: who
    comes later finds the machine warmer, and other pages in its caches.

    ``keeps_open``: all are open from the first prompt to the last, one answers and the others
    sleep; else one is open at a time, for its turn.
    """
    names = list(openers)
    found: dict[str, dict[int, Sample]] = {name: {} for name in names}
    notes = {}
    with ExitStack() as all_open:
        opened = {}
        if keeps_open:
            with show("loading", len(names)) as tick:
                for number, name in enumerate(names, start=1):
                    opened[name] = all_open.enter_context(_warm(openers[name], prompts[0]))
                    tick(number, name)
        with show("prompts", len(prompts) * len(names)) as tick:
            for turn, block in enumerate(blocks):
                for name in _rotated(names, turn):
                    at_hand: AbstractContextManager[Contestant] = (
                        nullcontext(opened[name])
                        if keeps_open
                        else _warm(openers[name], prompts[block[0]])
                    )
                    with at_hand as contestant:
                        for place in block:
                            sample = contestant.answer(prompts[place], max_tokens)
                            found[name][place] = sample
                            num_done = sum(map(len, found.values()))
                            tick(num_done, f"{name}, {len(sample.tokens)} tokens")
                        notes[name] = contestant.note
    return Answered(
        {name: [of_one[place] for place in range(len(prompts))] for name, of_one in found.items()},
        {name: note for name, note in notes.items() if note},
    )


def _rotated(names: Sequence[str], turn: int) -> Sequence[str]:
    first = turn % len(names)
    return (*names[first:], *names[:first])


@contextmanager
def _warm(opener: Opener, prompt: Sequence[int]) -> Iterator[Contestant]:
    """A contestant that has answered before: the first calls of an engine prepare things."""
    with opener() as contestant:
        contestant.answer(prompt, WARM_UP_TOKENS)
        yield contestant
