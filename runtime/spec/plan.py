"""How a round is to run, who decides that, and what is told of each decided round.

A plan may change from round to round. Under the coupled rule no plan changes a token; it decides
how fast they come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.lookup import LEAST_REACH, Looked

MODES = ("ar", "sd", "ssd")


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """One round: ``mode`` of MODES, and of the drafting in it K, W and what a miss falls back on.

    ar   plain decoding; the draft rests
    sd   ``num_draft`` tokens are drafted for each row, then verified
    ssd  proposals are verified, while up to ``num_branches`` outcomes of it are prepared, each
         with ``num_draft`` tokens for the round after. So what is verified was made under the plan
         before, and has as many tokens as that one said

    ``drafter`` says where the drafts come from; LOOKUP needs no draft engine, and is for ``sd``.
    A token is copied from the text if it and all copied before it are accepted with a probability
    of ``floor`` at least (``runtime.spec.lookup``).
    """

    mode: str
    num_draft: int = 0
    num_branches: int = 0
    fallback: Fallback = Fallback.ZERO
    drafter: Drafter = Drafter.MODEL
    floor: float = LEAST_REACH


PLAIN = RoundPlan("ar")


@dataclass(frozen=True, slots=True)
class RowReport:
    """One row of a decided round.

    kind         where its drafts came from
    hit          whether the outcome of the row's round before had been prepared, even where a
                 lookup was proposed in its stead; None where nothing was prepared for it: a row's
                 first round, and rounds after those of ``ar`` and ``sd``
    rank         where the bonus token of the round before stood among the draft's candidates, from
                 0; None where it was none of them, or ``hit`` is None
    num_emitted  tokens that count: up to where the text ended
    is_behind    it had no drafts because the draft is still taking in the text
    looked       lookups that this round has settled, of a chain in which each begins where the one
                 before was settled: real ones where the row took one, else what they would have
                 been. Empty where the policy does not watch lookups
    """

    slot: int
    kind: ProposalKind
    num_drafted: int
    accepted: int
    hit: bool | None
    num_emitted: int = 0
    rank: int | None = None
    is_behind: bool = False
    looked: tuple[Looked, ...] = ()


@dataclass(frozen=True, slots=True)
class RoundReport:
    """A decided round, and the rows that it judged.

    plan       what was asked for; where a draft had to catch up first the round was plain
    seconds    from the decision before to this one, on the device's clock; None where something
               else than decoding lay between them: a pause, a prompt, a text that joined or moved
    is_steady  nothing but this round lay between them: no change of mode either, nor what the draft
               had to take in for it
    verify_s   seconds of it in which the target verified
    draft_s    seconds the draft worked for what this round verified
    exposed_s  those of them that the target waited for
    span       rows of each cache that the verification was given, where that is known: more of them
               take longer
    """

    number: int
    rows: tuple[RowReport, ...]
    plan: RoundPlan = PLAIN
    seconds: float | None = None
    verify_s: float = 0.0
    draft_s: float = 0.0
    exposed_s: float = 0.0
    is_steady: bool = True
    span: int = 0


class Outlook(NamedTuple):
    """What the texts ask for that will be in the next round, all of them together.

    num_left     tokens that they may still emit
    num_lacking  tokens that the draft has to take in before it can draft for them
    """

    num_left: int
    num_lacking: int = 0


class Policy(Protocol):
    """Decides what the next round shall be. Called by the thread that drives the device."""

    @property
    def watches_lookups(self) -> bool:
        """Whether reports are to say what lookups would have come to (``RowReport.looked``)."""

    def next_round(self, look: Callable[[], Outlook]) -> RoundPlan:
        """Called once just before each round is queued; the last one may be undecided then.
        ``look`` says what lies ahead, to a policy that wants to know."""

    def joins(self, num_prompt: int, num_left: int) -> bool:
        """A text begins, with so many tokens to read and at most so many to emit. Whether a draft
        that drafts now is to read the prompt beside the target."""

    def observe(self, report: RoundReport) -> None:
        """Called with each decided round, in order."""

    def failed(self, reason: str) -> None:
        """The draft is gone for good: all further rounds are plain, whatever is planned."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """The policy that never changes its mind."""

    plan: RoundPlan

    @property
    def watches_lookups(self) -> bool:
        return False

    def next_round(self, look: Callable[[], Outlook]) -> RoundPlan:  # noqa: ARG002 - others need it
        return self.plan

    def joins(self, num_prompt: int, num_left: int) -> bool:  # noqa: ARG002 - others need it
        return True

    def observe(self, report: RoundReport) -> None:
        """Nothing is learnt."""

    def failed(self, reason: str) -> None:
        """There is nothing to change."""
