"""How a round is to run, who decides that, and what is told of each decided round.

A plan may change from round to round. Under the coupled rule no plan changes a token; it decides
how fast they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runtime.spec.fallback import Fallback, ProposalKind

MODES = ("ar", "sd", "ssd")


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round: ``mode`` of MODES, and of the drafting in it K, W and what a miss falls back on.

    ar   plain decoding; the draft rests
    sd   ``num_draft`` tokens are drafted for each row, then verified
    ssd  proposals are verified, while up to ``num_branches`` outcomes of it are prepared, each
         with ``num_draft`` tokens for the round after. So what is verified was made under the plan
         before, and has as many tokens as that one said
    """

    mode: str
    num_draft: int = 0
    num_branches: int = 0
    fallback: Fallback = Fallback.ZERO


PLAIN = RoundPlan("ar")


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row of a decided round.

    kind         where its drafts came from
    hit          whether the outcome of the row's round before had been prepared; None where
                 nothing was prepared for it: a row's first round, and rounds after those of ``ar``
                 and ``sd``
    rank         where the bonus token of the round before stood among the draft's candidates, from
                 0; None where it was none of them, or ``hit`` is None
    num_emitted  tokens that count: up to where the text ended
    is_behind    it had no drafts because the draft is still taking in the text
    """

    slot: int
    kind: ProposalKind
    num_drafted: int
    accepted: int
    hit: bool | None
    num_emitted: int = 0
    rank: int | None = None
    is_behind: bool = False


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A decided round, and the rows that it judged.

    plan       what was asked for; where a draft had to catch up first the round was plain
    seconds    from the decision before to this one, on the device's clock; None where something
               else than one round lay between them: a pause, a prompt, a text that joined or moved,
               a change of mode
    verify_s   seconds of it in which the target verified
    draft_s    seconds the draft worked for what this round verified
    exposed_s  those of them that the target waited for
    """

    number: int
    rows: tuple[RowReport, ...]
    plan: RoundPlan = PLAIN
    seconds: float | None = None
    verify_s: float = 0.0
    draft_s: float = 0.0
    exposed_s: float = 0.0


class Policy(Protocol):
    """Decides what the next round shall be. Called by the thread that drives the device."""

    def next_round(self) -> RoundPlan:
        """Called once just before each round is queued; the last one may be undecided then."""

    def observe(self, report: RoundReport) -> None:
        """Called with each decided round, in order."""

    def failed(self, reason: str) -> None:
        """The draft is gone for good: all further rounds are plain, whatever is planned."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The policy that never changes its mind."""

    plan: RoundPlan

    def next_round(self) -> RoundPlan:
        return self.plan

    def observe(self, report: RoundReport) -> None:
        """Nothing is learnt."""

    def failed(self, reason: str) -> None:
        """There is nothing to change."""
