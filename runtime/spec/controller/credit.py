"""What speculation may cost: an account that it lives on.

A round is compared with plain decoding of the same tokens, which takes ``plain_s``. Speculation
gains or loses the difference; a plain round is what it is compared with and loses nothing. While
none runs, ``plain_s`` is what the last ones took, and what has changed for all modes since: what
slows speculation alone is taken for such a change in part, until plain rounds are checked again.
The account is kept in seconds:

    a plain round          balance + share * seconds
    a speculative round    balance + share * plain_s - (seconds - plain_s)
    never above            ``limit_s``

A speculative round is launched only if the balance, less what is reserved for rounds in flight,
covers the most it can lose: each row emits at least one token, so that is its forecast seconds
less a plain round's.

What it costs that a draft takes in a text before it can draft for it stands apart, as a debt: it
depends on the text's length and says nothing of how good the draft is. Shares pay the debt first,
and no trial begins before it is paid.

**The bound.** Over any stretch of rounds let P be the time that plain decoding would have taken for
their tokens and T the time they took. The limit only ever lowers a balance, so the stretch's
losses add up to at most

    T - P  <=  (first balance - last balance) + (last debt - first debt) + share * P
           <=  limit_s + share * P + overrun

since the first balance is at most ``limit_s`` and the last is below zero only by the overrun: what
the rounds that were in flight together took beyond their forecasts, and what the draft had to take
in since shares last paid all of it: in one trial, and in as long as that went on. Throughput
against plain decoding is P / T, so

    P / T  >=  1 / (1 + share + (limit_s + overrun) / P)

With a share of 1.5 % and a limit of NUM_ROUNDS bad rounds that is 0.97 or more on every stretch of
at least 65 * (limit_s + overrun), some 1,040 times what one bad round loses, whatever the draft
does; the longer the stretch, the nearer to 0.985. It holds for every stretch, not only from the
start. What a bad round loses is a sixth of a plain step where one cheap draft is verified on a CPU
(so the stretch has 180 tokens), and one step where the draft is as slow as the target.
"""

from __future__ import annotations

SHARE = 0.015
"""Of the time of plain decoding: what looking for something better may cost in the long run."""
NUM_ROUNDS = 16.0
"""Bad rounds that a full account covers. Of the default pair's texts, where a third of the drafts
is right and one draft a round gains 14 %, half as many were used up by bad luck every other
sentence (8 % gained), and twice as many gained no more than these (13 %). With more the bound takes
longer to hold."""
START_ROUNDS = 4.0
"""Those that a new account covers: the beginning of a trial."""


class Credit:
    """See the module's text. ``balance_s`` begins at START_ROUNDS losing rounds."""

    def __init__(self) -> None:
        self.balance_s = 0.0
        self.limit_s = 0.0
        self.debt_s = 0.0
        self._is_open = False

    def value(self, loss_s: float) -> None:
        """Say how much a bad round loses at most, as far as is known now."""
        self.limit_s = NUM_ROUNDS * loss_s
        if not self._is_open and loss_s > 0:
            self._is_open = True
            self.balance_s = START_ROUNDS * loss_s
        self.balance_s = min(self.balance_s, self.limit_s)

    def covers(self, loss_s: float) -> bool:
        """Whether so much may be lost, by a round to come and those in flight together."""
        return self.balance_s >= loss_s

    def settle(self, plain_s: float, seconds: float, *, is_catching_up: bool = False) -> None:
        """A round took ``seconds``; plain decoding takes ``plain_s`` for its tokens. In a round in
        which the draft ``is_catching_up`` nothing was drafted."""
        share_s = SHARE * plain_s
        paid_s = min(self.debt_s, share_s)
        self.debt_s -= paid_s
        loss_s = seconds - plain_s
        if is_catching_up:
            self.debt_s += max(0.0, loss_s)
            loss_s = 0.0
        self.balance_s = min(self.balance_s + share_s - paid_s - loss_s, self.limit_s)
