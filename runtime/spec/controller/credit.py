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

What it costs that a draft reads a text before it can draft for it is a loss like any other, and a
trial has to be saved for with that in it before it begins: the limit is higher by as much where the
text to be read is long. Only where much of a text is still to come, reading may be borrowed: as a
debt of LOAN of the time that the rest of the text takes at most, which shares pay first; no trial
begins before it is paid. (Reading a long text costs more for each token than the share of a token's
time: who has to save for it would never begin.)

**The bound.** Over any stretch of rounds let P be the time that plain decoding would have taken for
their tokens and T the time they took. The limit only ever lowers a balance, so the stretch's
losses add up to at most

    T - P  <=  first balance - last balance + last debt - first debt + share * P
           <=  limit_s + share * P + loan + overrun

since the first balance is at most ``limit_s`` and the last is below zero only by the overrun: what
the rounds that were in flight together, or what the draft had to read, took beyond their forecasts.
Throughput against plain decoding is P / T, so

    P / T  >=  1 / (1 + share + (limit_s + loan + overrun) / P)

With a share of 0.9 % and a limit of NUM_ROUNDS bad rounds that is 0.97 or more on every stretch of
at least 46 * (limit_s + loan + overrun), some 730 times what one bad round loses, whatever the
draft does; the longer the stretch, the nearer to 0.991. It holds for every stretch, not only from
the start. What a bad round loses is a fifth of a plain step where one cheap draft is verified on a
CPU (so the stretch has 150 tokens), and one step where the draft is as slow as the target. From the
start it is better: a new account holds START_ROUNDS.
"""

from __future__ import annotations

SHARE = 0.009
"""Of the time of plain decoding: what looking for something better may cost in the long run. Plain
decoding scatters by more; a trial of the default pair's takes what 280 tokens have saved."""
NUM_ROUNDS = 16.0
"""Bad rounds that a full account covers. Of the default pair's texts, where a third of the drafts
is right and one draft a round gains 14 %, half as many were used up by bad luck every other
sentence (8 % gained), and twice as many gained no more than these (13 %). With more the bound takes
longer to hold."""
START_ROUNDS = 4.0
"""Those that a new account covers: the beginning of a trial."""
LOAN = 0.006
"""Of the plain time of what is to come of the texts: what reading them may cost without having been
saved for."""


class Credit:
    """See the module's text. ``balance_s`` begins at START_ROUNDS losing rounds."""

    def __init__(self) -> None:
        self.balance_s = 0.0
        self.limit_s = 0.0
        self.debt_s = 0.0
        self._loan_s = 0.0
        self._is_open = False

    def value(self, loss_s: float, saving_s: float = 0.0) -> None:
        """Say how much a bad round loses at most, as far as is known now, and what is to be saved
        beside that."""
        self.limit_s = NUM_ROUNDS * loss_s + saving_s
        if not self._is_open and loss_s > 0:
            self._is_open = True
            self.balance_s = START_ROUNDS * loss_s
        self.balance_s = min(self.balance_s, self.limit_s)

    def covers(self, loss_s: float) -> bool:
        """Whether so much may be lost, by a round to come and those in flight together."""
        return self.balance_s >= loss_s

    def lend(self, seconds: float) -> None:
        """So much of what reading costs from now on becomes a debt."""
        self._loan_s = seconds

    def settle(self, plain_s: float, seconds: float, *, is_reading: bool = False) -> None:
        """A round took ``seconds``; plain decoding takes ``plain_s`` for its tokens.
        ``is_reading``: what it lost is what the draft read."""
        share_s = SHARE * plain_s
        paid_s = min(self.debt_s, share_s)
        self.debt_s -= paid_s
        loss_s = seconds - plain_s
        if is_reading:
            lent_s = min(self._loan_s, max(0.0, loss_s))
            self._loan_s -= lent_s
            self.debt_s += lent_s
            loss_s -= lent_s
        self.balance_s = min(self.balance_s + share_s - paid_s - loss_s, self.limit_s)
