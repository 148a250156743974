"""Turns of contestants: fair, and everybody is closed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial

import pytest

from runtime.bench.dataset.contestant import Contestant, Sample
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
) -> tuple[Answered, list[int]]:
    ticks: list[int] = []

    @contextmanager
    def show(what: str, total: int) -> Iterator[Callable[[int, str], None]]:
        yield lambda done, _: ticks.append(done) if what == "prompts" else None
        assert what == "loading" or ticks[-1] == total

    blocks = single_prompts(ITEMS) if keeps_open else whole_categories(ITEMS)
    openers = {name: partial(open_one, name, log) for name in NAMES}
    done = take_turns(openers, PROMPTS, blocks, 20, show, keeps_open=keeps_open)
    return done, ticks


def test_prompt_by_prompt_and_each_begins_at_times() -> None:
    """A machine that slows down meanwhile would else slow the last mode alone."""
    log: list[tuple[str, object]] = []
    done, ticks = run(log, keeps_open=True)
    assert log[:6] == [(name, what) for name in NAMES for what in ("open", "warm")]
    order = log[6:-3]
    assert order[:6] == [("ar", 0), ("sd", 0), ("ssd", 0), ("sd", 1), ("ssd", 1), ("ar", 1)]
    assert [order[3 * turn][0] for turn in range(4)] == ["ar", "sd", "ssd", "ar"]
    assert {what for _, what in log[-3:]} == {"close"}
    assert [sample.tokens for sample in done.answers["ssd"]] == [(0,), (1,), (2,), (3,)]
    assert list(done.answers) == list(NAMES)
    assert done.notes == {"sd": "sd could not"}
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
    assert [sample.tokens for sample in done.answers["ar"]] == [(0,), (1,), (2,), (3,)]
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
