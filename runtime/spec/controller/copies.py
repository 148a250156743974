"""What lookups would yield: judged in every round, at no engine's cost.

Whether the text said before what it says now is known without verifying it: reports tell how far a
lookup would have gone (``Looked``), plain rounds too. So lookups need no trial. Two things are
learnt: how long the matches are that texts offer, for long and lately, and how often a copied token
is right behind a match of some length (``runtime.spec.lookup``).
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.spec.lookup import CopyRates, Looked
from runtime.spec.ngram import LONGEST

PRIOR = 16.0
"""Places without a match that were seen before any was."""
LONG = 8.0
"""What the long memory counts for, in places."""
SLOW, FAST = 512.0, 32.0
"""Half-lives in places: of a text there are hundreds, and a passage that is quoted has dozens."""
REALISED = 32.0
"""Half-life in rounds, and weight in tokens of the forecast itself: half of a short text."""
KEPT = 0.5 ** (1 / REALISED)
ANOTHER = 0.25
"""What of the recent memory is left where another text begins."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Of one row's rounds, by what it proposes.

    widths   share of rounds that propose 0, 1, ... K copied tokens: K + 1 of them
    tokens   that such a round emits on average where it proposes some
    """

    widths: tuple[float, ...]
    tokens: float

    @property
    def share(self) -> float:
        """Of rounds that propose a copy."""
        return 1.0 - self.widths[0]

    def most_s(self, seconds: tuple[float, ...], batch: int) -> float:
        """Mean of ``seconds`` at the largest width of ``batch`` rows: [K + 1] by width."""
        total, reached, before = 0.0, 0.0, 0.0
        for width, each_s in zip(self.widths, seconds, strict=True):
            reached += width
            now = min(1.0, reached) ** batch
            total += (now - before) * each_s
            before = now
        return total


class Copies:
    """Learns from the lookups that rounds have settled; see the module's text."""

    def __init__(self) -> None:
        self._rates = CopyRates()
        self._slow, self._fast = _Places(SLOW), _Places(FAST)

    def see(self, looked: Looked) -> None:
        """A lookup, real or not, has come to its end."""
        length, proposed, confirmed = looked
        length = min(length, LONGEST)
        self._slow.see(length)
        self._fast.see(length)
        if length:
            self._rates.see(length, confirmed, proposed)

    def begin_text(self, batch: int) -> None:
        """One of ``batch`` texts is another one now."""
        self._fast.fade(ANOTHER ** (1 / batch))

    @property
    def acceptance(self) -> float:
        """Of a first copied token, where there is a match."""
        shares = self._shares()
        found = sum(shares[1:])
        rates = (share * self._rates.rate(at) for at, share in enumerate(shares) if at)
        return sum(rates) / found if found else 0.0

    def forecast(self, num_draft: int, floor: float, other: float = 0.0) -> Yield:
        """Of lookups of up to K tokens with that ``floor`` (``RoundPlan``), made where they promise
        at least ``other`` accepted tokens."""
        widths, tokens = [0.0] * (num_draft + 1), 0.0
        for length, share in enumerate(self._shares()):
            if not share:
                continue
            count, expected = self._rates.worth(length, num_draft, floor)
            if not count or expected < other:
                widths[0] += share
                continue
            widths[count] += share
            tokens += share * (1 + expected)
        proposing = 1.0 - widths[0]
        return Yield(tuple(widths), tokens / proposing if proposing > 0 else 1.0)

    def _shares(self) -> list[float]:
        """Of places whose match has 0, 1, ... LONGEST tokens."""
        slow, fast = self._slow, self._fast
        whole, recent = PRIOR + slow.total, LONG + fast.total
        known = [count / whole for count in slow.counts]
        known[0] += PRIOR / whole
        return [
            (LONG * share + count) / recent for share, count in zip(known, fast.counts, strict=True)
        ]


class Realised:
    """What lookups really yielded, in what was forecast: matches of one text are better than
    another's of the same length. Fades over REALISED rounds, and starts from as many that were as
    forecast."""

    def __init__(self) -> None:
        self._tokens = self._expected = 0.0

    def see(self, num_tokens: int, expected: float) -> None:
        """A round emitted so many, where ``expected`` of them were."""
        self._tokens = KEPT * self._tokens + num_tokens
        self._expected = KEPT * self._expected + expected

    @property
    def factor(self) -> float:
        """Of a forecast."""
        return (REALISED + self._tokens) / (REALISED + self._expected)


class _Places:
    """Counts by length of match that fade with each further one. New ones weigh ever more instead:
    a count touched is the only one that costs time."""

    __slots__ = ("_counts", "_growth", "_total", "_weight")

    def __init__(self, half_life: float) -> None:
        self._counts = [0.0] * (LONGEST + 1)
        self._total = 0.0
        self._weight = 1.0
        self._growth = 2.0 ** (1 / half_life)

    def see(self, length: int) -> None:
        self.fade(1 / self._growth)
        self._counts[length] += self._weight
        self._total += self._weight

    def fade(self, kept: float) -> None:
        self._weight /= kept
        if self._weight > 1e100:  # texts may begin, one after the other, that settle nothing
            self._counts, self._total, self._weight = self.counts, self.total, 1.0

    @property
    def counts(self) -> list[float]:
        return [count / self._weight for count in self._counts]

    @property
    def total(self) -> float:
        return self._total / self._weight
