"""What each mode yields for a pair, which setting is best, and where it begins to pay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from runtime.spec.cost.economics import BreakEven, Devices, break_even
from runtime.spec.cost.laws import Laws
from runtime.spec.cost.prediction import Prediction
from runtime.spec.cost.search import Space, best_of_mode, up_to
from runtime.spec.cost.times import PairTimes
from runtime.spec.fallback import Fallback, ProposalKind


@dataclass(frozen=True, slots=True)
class Question:
    """A pair and how it is to run.

    most_drafts    K is looked for up to here, and
    most_branches  W up to here
    notes          what it rests on: measured, logged or assumed, a sentence each
    """

    times: PairTimes
    laws: Laws
    batch: int
    devices: Devices
    most_drafts: int
    most_branches: int
    notes: tuple[str, ...] = ()

    @property
    def space(self) -> Space:
        """All settings that are looked at. Without copies ``lookup`` is ``zero``."""
        space = up_to(self.most_drafts, self.most_branches)
        if self.laws.lookup_share:
            return space
        return Space(space.drafts, space.widths, (Fallback.ZERO, Fallback.JIT))


@dataclass(frozen=True, slots=True)
class Choice:
    """The best setting of one mode (of ``ssd``: with one fallback).

    speed_up             in plain decoding's tokens a second
    tokens_s_each        tokens a second for each device that the mode occupies
    fan_out              outcomes prepared with k = 0, 1, ... K accepted tokens, after a hit
    fan_out_after_miss   and in a round without drafts or with new ones; both empty outside ``ssd``
    """

    prediction: Prediction
    speed_up: float
    num_devices: int
    tokens_s_each: float
    fan_out: tuple[int, ...] = ()
    fan_out_after_miss: tuple[int, ...] = ()

    @property
    def mode(self) -> str:
        return self.prediction.plan.mode

    @property
    def tokens_s(self) -> float:
        return self.prediction.tokens_s


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer: ``ar``, ``sd``, and ``ssd`` with each fallback; where they break even."""

    question: Question
    choices: tuple[Choice, ...]
    break_even: BreakEven

    @property
    def plain(self) -> Choice:
        return self.choices[0]

    @property
    def best(self) -> Choice:
        """The most tokens a second."""
        return max(self.choices, key=lambda choice: choice.tokens_s)

    def best_of(self, *modes: str) -> Choice:
        """The most tokens a second of these modes."""
        found = [choice for choice in self.choices if choice.mode in modes]
        return max(found, key=lambda choice: choice.tokens_s)


def answer(question: Question) -> Plan:
    """Search all settings; takes a second or two, more for batches of 2 to 8."""
    choices = tuple(_choices(question))
    thin = _thin(question.space)
    return Plan(
        question,
        choices,
        break_even(
            question.times,
            question.laws.at_acceptance,
            question.batch,
            thin,
            question.devices,
        ),
    )


def _choices(question: Question) -> Iterator[Choice]:
    space = question.space
    plain = _best(question, "ar", space)
    for found in (
        plain,
        _best(question, "sd", space),
        *(
            _best(question, "ssd", Space(space.drafts, space.widths, (fallback,)))
            for fallback in space.fallbacks
        ),
    ):
        yield Choice(
            prediction=found,
            speed_up=found.tokens_s / plain.tokens_s,
            num_devices=question.devices.used_by(found.plan.mode),
            tokens_s_each=question.devices.rate_each(found),
            fan_out=_fan_out(question.laws, found, ProposalKind.HIT),
            fan_out_after_miss=_fan_out(question.laws, found, _after_miss(found)),
        )


def _best(question: Question, mode: str, space: Space) -> Prediction:
    return best_of_mode(question.times, question.laws, question.batch, mode, space)


def _after_miss(found: Prediction) -> ProposalKind:
    return ProposalKind.JIT if found.plan.fallback is Fallback.JIT else ProposalKind.NONE


def _fan_out(laws: Laws, found: Prediction, kind: ProposalKind) -> tuple[int, ...]:
    if found.plan.mode != "ssd":
        return ()
    drafted = 0 if kind is ProposalKind.NONE else found.plan.num_draft
    return laws.kinds[kind].fan_out(drafted, found.plan.num_branches)


def _thin(space: Space) -> Space:
    """Enough of the settings to tell where something begins to pay."""
    drafts = [k for k in space.drafts if k in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
    return Space(drafts, [*space.widths[:-1:2], space.widths[-1]], space.fallbacks)


@dataclass(frozen=True, slots=True)
class Curves:
    """Tokens a second of each mode at its best setting, over acceptance."""

    acceptance: tuple[float, ...]
    tokens_s: dict[str, tuple[float, ...]]


def curves(question: Question, num: int = 33, highest: float = 0.96) -> Curves:
    """``num`` points from 0 to ``highest``."""
    space = _thin(question.space)
    acceptance = tuple(highest * step / (num - 1) for step in range(num))
    laws = [question.laws.at_acceptance(each) for each in acceptance]
    return Curves(
        acceptance,
        {
            mode: tuple(
                best_of_mode(question.times, each, question.batch, mode, space).tokens_s
                for each in laws
            )
            for mode in ("ar", "sd", "ssd")
        },
    )
