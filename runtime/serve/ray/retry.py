"""What to do when a replica is lost. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_ATTEMPTS = 8
"""With their pauses some 20 s: time for a lone replica to be replaced."""
MOST_FALLEN = 3
"""Replicas that may go down with one text in hand: it may be what kills them."""
LONGEST_PAUSE_S = 5.0


@dataclass(slots=True)
class Attempts:
    """The attempts at one text.

    may_restart  whoever reads it wants it whole, so that a beginning of it can be thrown away
    num_fallen   of the lost, those that had taken the text
    avoided      replicas that failed this text although they live
    """

    may_restart: bool
    num_lost: int = 0
    num_fallen: int = 0
    avoided: list[str] = field(default_factory=list)

    def lost(self, replica: str | None, *, was_taken: bool, has_begun: bool) -> float | None:
        """A replica was lost, or its engines failed (``replica``, where that is known), after it
        had taken the text or not, and some of it had been handed on or not. Seconds to wait before
        the next attempt; None: there is none.

        Tokens depend on the request and its seed, which all attempts share, so nobody can tell
        which attempt an answer is from.
        """
        self.num_lost += 1
        self.num_fallen += was_taken
        if replica is not None and replica not in self.avoided:
            self.avoided.append(replica)
        if has_begun and not self.may_restart:
            return None
        if self.num_lost >= MOST_ATTEMPTS or self.num_fallen >= MOST_FALLEN:
            return None
        # At once the first time: the others are there, and Ray no longer routes to a dead one.
        pause_s: float = 0.0 if self.num_lost == 1 else 0.2 * 2 ** (self.num_lost - 1)
        return min(LONGEST_PAUSE_S, pause_s)
