"""How often drafts were right: for long, and lately.

``OutcomeStatistics`` learns which outcomes to prepare and forgets over hundreds of rounds. Whether
speculation pays *now* takes a shorter memory, and laws for numbers of drafts that are not being
tried. Each probability here has three sources, each the prior of the next:

    calibration          counts as PRIOR trials
    all that was seen    by kind of proposal, fading over SLOW rounds of rows
    what was seen lately over FAST of them, drafts prepared ahead and just in time together: they
                         are one model's, and a text that is hard for one is hard for the other

A place that was not tried goes by the other places, for the same reason: a draft that fares better
than calibration said is given more tokens to draft, and these then speak for themselves.
"""

from __future__ import annotations

import numpy as np

from runtime.spec.cost import KindLaw, Laws
from runtime.spec.fallback import ProposalKind

PRIOR, LONG = 16.0, 4.0
"""What calibration and the long memory count for, in trials."""
NEAR, LONG_NEAR = 16.0, 32.0
"""The same of the other places, lately and for long: at most, and as many as were tried."""
SLOW, FAST = 512.0, 16.0
"""Half-lives in rounds of one row. FAST is a sentence or so. Of scripted texts that turn every 100
to 400 rounds, this memory and these weights got the most; steady ones lose nothing by them."""
DRAFTED = (ProposalKind.HIT, ProposalKind.JIT)
"""Kinds whose tokens are the draft model's."""


class RecentLaws:
    """Learns from rounds; see the module's text. Knows up to ``num_draft`` (K) places."""

    def __init__(self, prior: Laws, num_draft: int) -> None:
        self._prior = prior
        self._num_draft = num_draft
        self._slow = {kind: _Passes(num_draft) for kind in ProposalKind}
        self._fast = {by_draft: _Passes(num_draft) for by_draft in (False, True)}
        num_ranks = len(prior.kinds[ProposalKind.HIT].bonus)
        self._slow_ranks = {kind: np.zeros((2, num_ranks + 1)) for kind in ProposalKind}
        self._fast_ranks = np.zeros((2, num_ranks + 1))
        self._copied = [0.0, 0.0]

    def see(self, kind: ProposalKind, num_drafted: int, accepted: int) -> None:
        """A row's round was judged."""
        if num_drafted:
            self._slow[kind].see(num_drafted, accepted, SLOW)
            self._fast[kind in DRAFTED].see(num_drafted, accepted, FAST)

    def see_rank(self, kind: ProposalKind, rank: int | None, *, all_accepted: bool) -> None:
        """Where that round's bonus token stood among the draft's candidates; None: it was none."""
        if kind is ProposalKind.NONE and self._num_draft:
            # Nothing was drafted, but the first candidate would have been.
            self._fast[True].see(1, int(rank == 0), FAST)
        beyond = self._fast_ranks.shape[1] - 1
        place = beyond if rank is None else min(rank, beyond)
        for counts, half_life in ((self._slow_ranks[kind], SLOW), (self._fast_ranks, FAST)):
            counts[int(all_accepted)] *= 0.5 ** (1 / half_life)
            counts[int(all_accepted), place] += 1

    def see_copy(self, *, is_found: bool) -> None:
        """After a miss there was something to copy from the text, or nothing."""
        self._copied = [0.5 ** (1 / SLOW) * count for count in self._copied]
        self._copied[is_found] += 1

    def fade(self, num_rounds: float) -> None:
        """So many rounds showed nothing: what was seen lately is no longer recent."""
        kept = 0.5 ** (num_rounds / FAST)
        for passes in self._fast.values():
            passes.scale(kept)
        self._fast_ranks *= kept

    @property
    def acceptance(self) -> float:
        """Of a draft's first token, as it is now."""
        return self._passing(ProposalKind.JIT, 0) if self._num_draft else 0.0

    def now(self) -> Laws:
        """The laws to expect of the next rounds."""
        none, found = self._copied
        share = (PRIOR * self._prior.lookup_share + found) / (PRIOR + none + found)
        return Laws({kind: self._law(kind) for kind in self._prior.kinds}, share)

    def _law(self, kind: ProposalKind) -> KindLaw:
        prior = self._prior.kinds[kind]
        slow, fast = self._slow_ranks[kind], self._fast_ranks
        if kind is ProposalKind.LOOKUP:
            fast = np.zeros_like(fast)  # a copied token's rejection rules out no candidate
        known = PRIOR * np.vstack([prior.rejected, prior.bonus]) + slow[:, :-1]
        known /= PRIOR + slow.sum(1, keepdims=True)
        ranks = (LONG * known + fast[:, :-1]) / (LONG + fast.sum(1, keepdims=True))
        places = range(0 if kind is ProposalKind.NONE else self._num_draft)
        accept = np.array([self._passing(kind, place) for place in places])
        return KindLaw(accept, ranks[0], ranks[1])

    def _passing(self, kind: ProposalKind, place: int) -> float:
        """The probability that the token drafted at ``place`` is accepted, those before it were."""
        known = self._prior.kinds[kind].accept
        prior = float(known[min(place, len(known) - 1)])
        slow = self._slow[kind].estimate(place, prior, PRIOR, LONG_NEAR)
        return self._fast[kind in DRAFTED].estimate(place, slow, LONG, NEAR)


class _Passes:
    """Of each place, how often its token was accepted and how often it was tried; both fade."""

    __slots__ = ("_hits", "_trials")

    def __init__(self, num_places: int) -> None:
        self._hits = [0.0] * num_places
        self._trials = [0.0] * num_places

    def see(self, num_drafted: int, accepted: int, half_life: float) -> None:
        self.scale(0.5 ** (1 / half_life))
        for place in range(accepted):
            self._hits[place] += 1
        for place in range(min(num_drafted, accepted + 1)):
            self._trials[place] += 1

    def scale(self, kept: float) -> None:
        self._hits = [kept * value for value in self._hits]
        self._trials = [kept * value for value in self._trials]

    def estimate(self, place: int, prior: float, weight: float, near: float) -> float:
        """The rate at ``place``. Its prior counts as ``weight`` trials, the other places as up to
        ``near`` of them."""
        hits, trials = self._hits[place], self._trials[place]
        all_trials = sum(self._trials)
        if all_trials:
            near = min(near, all_trials)
            hits, trials = hits + near * sum(self._hits) / all_trials, trials + near
        return (weight * prior + hits) / (weight + trials)
