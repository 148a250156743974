"""Turns of contestants: fair, and everybody is closed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from engines.errors import BackendError
from runtime.bench.dataset.contestant import Block, Contestant, Sample
from runtime.bench.dataset.items import Item
from runtime.bench.dataset.turns import (
    WARM_UP_TOKENS,
    Answered,
    single_prompts,
    take_turns,
    whole_categories,
)

ITEMS = [Item("qa", "0", 1), Item("rag", "1", 2), Item("qa", "2", 3), Item("qa", "3", 4)]
PROMPTS = [[int(item.text)] for item in ITEMS]
NAMES = ("ar", "sd", "ssd")


@dataclass
class Fake:
    """Answers with its prompt; writes down what happens to it."""

    name: str
    log: list[tuple[str, object]]
    is_peer = False

    @property
    def description(self) -> str:
        return f"{self.name} on a thread"

    @property
    def note(self) -> str | None:
        return f"{self.name} could not" if self.name == "sd" else None

    def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
        self.log.append((self.name, "warm" if max_tokens == WARM_UP_TOKENS else prompt[0]))
        return Sample(tuple(prompt), 0.0, 1.0, ())


@contextmanager
def opened(name: str, log: list[tuple[str, object]]) -> Iterator[Contestant]:
    log.append((name, "open"))
    yield Fake(name, log)
    log.append((name, "close"))


def run(
    log: list[tuple[str, object]],
    *,
    keeps_open: bool,
    open_one: Callable[..., AbstractContextManager[Contestant]] = opened,
    repeats: int = 1,
    names: Sequence[str] = NAMES,
) -> tuple[Answered, list[int]]:
    ticks: list[int] = []

    @contextmanager
    def show(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        yield lambda done, _: ticks.append(done) if what == "answers" else None
        assert what == "loading" or len(ticks) == total

    blocks = single_prompts(ITEMS) if keeps_open else whole_categories(ITEMS)
    openers = {name: partial(open_one, name, log) for name in names}
    done = take_turns(openers, PROMPTS, blocks, 20, show, keeps_open=keeps_open, repeats=repeats)
    return done, ticks


def tokens_of(done: Answered, name: str) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens for sample in of_prompt] for of_prompt in done.samples[name]]


def test_prompt_by_prompt_and_each_begins_at_times() -> None:
    """A machine that slows down meanwhile would else slow the last mode alone."""
    log: list[tuple[str, object]] = []
    done, ticks = run(log, keeps_open=True)
    assert log[:6] == [(name, what) for name in NAMES for what in ("open", "warm")]
    order = log[6:-3]
    assert order[:6] == [("ar", 0), ("sd", 0), ("ssd", 0), ("sd", 1), ("ssd", 1), ("ar", 1)]
    assert [order[3 * turn][0] for turn in range(4)] == ["ar", "sd", "ssd", "ar"]
    assert {what for _, what in log[-3:]} == {"close"}
    assert tokens_of(done, "ssd") == [[(0,)], [(1,)], [(2,)], [(3,)]]
    assert list(done.samples) == list(NAMES)
    assert [done.facts[name].note for name in NAMES] == [None, "sd could not", None]
    assert done.facts["ar"].description == "ar on a thread"
    assert done.places == [0, 1, 2, 3]
    assert done.ended_by is None
    assert ticks == list(range(1, 13))


def test_reopened_one_is_in_memory_at_a_time() -> None:
    log: list[tuple[str, object]] = []
    done, ticks = run(log, keeps_open=False)
    held = 0
    for _, what in log:
        held += {"open": 1, "close": -1}.get(str(what), 0)
        assert held <= 1
    turns = [entry for entry in log if entry[1] == "open"]
    assert [name for name, _ in turns] == ["ar", "sd", "ssd", "sd", "ssd", "ar"]
    assert log[:5] == [("ar", "open"), ("ar", "warm"), ("ar", 0), ("ar", 2), ("ar", 3)]
    assert tokens_of(done, "ar") == [[(0,)], [(1,)], [(2,)], [(3,)]]
    assert ticks == list(range(1, 13))


@pytest.mark.parametrize("keeps_open", [False, True])
def test_an_error_closes_everybody(keeps_open: bool) -> None:
    log: list[tuple[str, object]] = []

    @contextmanager
    def broken(name: str, log: list[tuple[str, object]]) -> Iterator[Contestant]:
        if name == "ssd":
            raise RuntimeError("no room")
        try:
            yield Fake(name, log)
        finally:
            log.append((name, "close"))

    with pytest.raises(RuntimeError, match="no room"):
        run(log, keeps_open=keeps_open, open_one=broken)
    assert {name for name, what in log if what == "close"} == {"ar", "sd"}


def test_a_prompt_meets_another_order_in_each_pass() -> None:
    """Four prompts and two contestants: by turns alone the same one would always begin."""
    log: list[tuple[str, object]] = []
    done, ticks = run(log, keeps_open=True, repeats=2, names=("ar", "sd"))
    order = log[4:-2]
    begins = [order[2 * turn] for turn in range(8)]
    assert [name for name, place in begins if place == 0] == ["ar", "sd"]
    assert [name for name, place in begins if place == 3] == ["sd", "ar"]
    assert [len(each) for each in done.samples["sd"]] == [2] * 4
    assert ticks == list(range(1, 17))


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), BackendError("out of memory")])
@pytest.mark.parametrize("keeps_open", [False, True])
def test_what_ends_it_early_keeps_what_was_answered(
    keeps_open: bool, cause: KeyboardInterrupt | BackendError
) -> None:
    """A mode that failed in the middle took the others' answers with it."""
    log: list[tuple[str, object]] = []

    class Impatient(Fake):
        def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
            if self.name == "ssd" and prompt[0] == 2 and max_tokens != WARM_UP_TOKENS:
                raise cause
            return super().answer(prompt, max_tokens)

    @contextmanager
    def open_one(name: str, log: list[tuple[str, object]]) -> Iterator[Contestant]:
        try:
            yield Impatient(name, log)
        finally:
            log.append((name, "close"))

    @contextmanager
    def show(_what: str, _total: int) -> Iterator[Callable[[int, str], None]]:
        yield lambda _done, _detail: None

    blocks = single_prompts(ITEMS) if keeps_open else whole_categories(ITEMS)
    openers = {name: partial(open_one, name, log) for name in NAMES}
    done = take_turns(openers, PROMPTS, blocks, 20, show, keeps_open=keeps_open)
    assert (done.ended_by, done.at_turn) == (cause, "ssd")
    assert done.places == ([0, 1] if keeps_open else [0])
    assert {name for name, what in log if what == "close"} == set(NAMES)
    assert done.facts["ssd"].description == "ssd on a thread"


def test_a_peer_is_cut_to_the_baseline_whoever_came_first() -> None:
    """Half of its answers were begun before anybody knew how long the baseline's would be."""
    asked: list[tuple[int, int]] = []

    class Chatty(Fake):
        is_peer = True

        def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
            if max_tokens != WARM_UP_TOKENS:
                asked.append((prompt[0], max_tokens))
            blocks = tuple(Block(1.0 + i, 1, 0, 0, None, "ar") for i in range(max_tokens))
            return Sample(tuple(range(max_tokens)), 0.0, float(max_tokens), blocks)

    class Short(Fake):
        def answer(self, prompt: Sequence[int], max_tokens: int) -> Sample:
            return Sample((8,) * min(max_tokens, prompt[0]), 0.0, 1.0, ())

    @contextmanager
    def open_one(name: str, log: list[tuple[str, object]]) -> Iterator[Contestant]:
        yield (Chatty if name == "other" else Short)(name, log)

    done, _ = run([], keeps_open=True, open_one=open_one, names=("ar", "other"))
    assert asked == [(0, 0), (1, 20), (2, 2), (3, 20)]
    samples = [each for (each,) in done.samples["other"]]
    assert [len(sample.tokens) for sample in samples] == [0, 1, 2, 3]
    assert [sample.decode_s for sample in samples] == [0.0, 1.0, 2.0, 3.0]
    assert [len(sample.blocks) for sample in samples] == [0, 1, 2, 3]
