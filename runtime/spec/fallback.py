"""What a row whose outcome was not prepared goes on with, and where a proposal came from."""

from __future__ import annotations

from enum import Enum, StrEnum, auto


class Fallback(StrEnum):
    """What a row does after a miss. None of them changes what is emitted under the coupled rule.

    ZERO    verify the bonus token's place alone: exact, no wait, one token this round
    JIT     draft K tokens at once, just in time: no token is lost, the row waits for its draft
    LOOKUP  propose what followed when the text's last tokens stood there before; zero drafts
            where they never did
    """

    ZERO = "zero"
    JIT = "jit"
    LOOKUP = "lookup"


class ProposalKind(Enum):
    """Where a round's drafted tokens came from; each kind is accepted by a law of its own.

    HIT     prepared ahead of time for the outcome that came true
    JIT     drafted after the outcome was known
    LOOKUP  copied from the text
    NONE    there are none
    """

    HIT = auto()
    JIT = auto()
    LOOKUP = auto()
    NONE = auto()

    # Members are single objects; Enum's own hash is Python code and runs 168 times a round of 16.
    __hash__ = object.__hash__
