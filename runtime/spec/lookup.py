"""When a lookup is proposed: how often copied tokens are right, and how often the model's are.

A copied token is right the more often the more tokens before it stand as they stood before, and
each copied token that is right makes that match one longer. So one rate for each length says how
far a copy will go:

    tokens accepted of a copy, on average  =  r(m) + r(m) r(m + 1) + r(m) r(m + 1) r(m + 2) + ...

with m the length of the match. On greedy texts of the default pair the first copied token was right
in 23 % of the places with m = 1, 54 % with 2, 67 % with 3, 95 % with 16 and more; the second one,
behind a right one, in 57 % with m = 1 and 69 % with 2. This is where the rates start; what rounds
show soon outweighs it (PRIOR).

A match is weak where other places with its last two tokens (or last one) went on otherwise, and
strong where all went on alike (``Evidence``), so each case has rates of its own. In 240 greedy
answers of the default target (K = 4) copies with m = 2 had 1.5 tokens accepted where there was one
place, 1.8 where several agreed, 0.6 where they did not; with m = 1 it was 0.7, 1.3 and 0.3.

A lookup is proposed where it promises as many accepted tokens as what the row would have else. The
choice looks at matches and at past rounds, never at what a model has drawn or would draw, so it is
exact under the ratio rule, too, where a copied token is a point mass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from runtime.spec.fallback import ProposalKind
from runtime.spec.ngram import LONGEST, NO_MATCH, Evidence, Match, NgramIndex

PRIOR_RATES = (
    *(0.23, 0.54, 0.67, 0.73, 0.78, 0.80, 0.80, 0.80),
    *(0.81, 0.83, 0.84, 0.85, 0.86, 0.88, 0.90, 0.95),
)
"""By length of the match, 1 to LONGEST: 48 texts of the default pair, 128 tokens each. They answer
prompts that drafts are also evaluated with, so an evaluation begins with rates that fit it better
than they would fit other texts. They are no more than a prior."""
DISPUTED_SHARE = 0.6
"""Of a prior rate, where earlier places disagree."""
PRIOR = 32.0
"""Judged tokens that a prior rate counts for: what a pair has seen at a length, FADING, comes to
weigh 6 times as much."""
FADING = 0.5 ** (1 / 128)
"""Of what a length or place has seen, at each further token that it sees. A stream changes its
subject: on the 240 texts above, category after category, 128 was better than 256 by 0.4 % of a
round's tokens, in random order the two were alike."""
LEAST_REACH = 0.2
"""A copied token is proposed if it is accepted with this probability, those before it included.
On a CPU one more row makes a verification of the default target longer by a fifth of a step. The
evaluation of a draft counts rounds and not seconds, and so has 0 here (``LookupReplay``)."""
DRAFTING = 0.8
"""Where drafting with the model delays the round: what that leaves of its tokens' worth. The
default pair drafts four tokens in 4 ms and verifies them in 14."""
DEFAULT_ALPHA = 0.5
MODELS = (ProposalKind.HIT, ProposalKind.JIT)
"""Kinds whose tokens the draft model drafted."""


class CopyRates:
    """How often a copied token is accepted, by the length of the match before it and the evidence
    for its first token."""

    def __init__(self) -> None:
        self._rates = {
            evidence: [
                _Rate(rate * (DISPUTED_SHARE if evidence is Evidence.DISPUTED else 1.0))
                for rate in PRIOR_RATES
            ]
            for evidence in Evidence
        }

    def rate(self, num_matched: int, evidence: Evidence = Evidence.ONE) -> float:
        """Of the token behind a match of that length, from 1 on."""
        return self._at(num_matched, evidence).value

    def worth(
        self,
        num_matched: int,
        num_tokens: int,
        floor: float,
        evidence: Evidence = Evidence.ONE,
    ) -> tuple[int, float]:
        """How many of ``num_tokens`` copied behind such a match are reached with a probability of
        at least ``floor``, and how many of these are accepted on average."""
        reached, expected = 1.0, 0.0
        for count in range(num_tokens if num_matched else 0):
            reached *= self._at(num_matched + count, evidence).value
            if reached < floor:
                return count, expected
            expected += reached
        return num_tokens if num_matched else 0, expected

    def see(
        self,
        num_matched: int,
        num_confirmed: int,
        num_known: int,
        evidence: Evidence = Evidence.ONE,
    ) -> None:
        """Of the tokens copied behind such a match the text has since reached ``num_known``, and
        the first ``num_confirmed`` were right."""
        for count in range(min(num_known, num_confirmed + 1) if num_matched else 0):
            self._at(num_matched + count, evidence).see(count < num_confirmed)

    def _at(self, num_matched: int, evidence: Evidence) -> _Rate:
        return self._rates[evidence][min(num_matched, LONGEST) - 1]


class SourceChoice:
    """Chooses between a copy and what a row would propose else; learns how both fare. Of one pair,
    used on one stream.

    Only rounds with a match count for the model: where there is none, nothing is chosen.
    """

    def __init__(self, num_draft: int, alpha: float | None = None) -> None:
        """``alpha``: the draft maker's share of tokens that are accepted."""
        self.copies = CopyRates()
        start = DEFAULT_ALPHA if alpha is None else alpha
        self._models = {kind: [_Rate(start) for _ in range(num_draft)] for kind in MODELS}

    def model_worth(self, kind: ProposalKind, num_tokens: int, *, waits: bool = False) -> float:
        """Accepted tokens to expect of so many that the model drafts; ``waits``: the round has to
        wait for them, which makes them worth less."""
        reached, expected = 1.0, 0.0
        for rate in self._models[kind][:num_tokens]:
            reached *= rate.value
            expected += reached
        return DRAFTING * (1 + expected) - 1 if waits else expected

    def choose(self, match: Match, other: float, floor: float) -> tuple[int, ...]:
        """What to propose of a match; nothing where ``other``, the accepted tokens to expect of
        the row's other drafts, is more."""
        length, tokens, evidence = match
        count, expected = self.copies.worth(length, len(tokens), floor, evidence)
        return tokens[:count] if count and expected >= other else ()

    def see_copy(self, match: Match, emitted: Sequence[int]) -> None:
        """The text went on with ``emitted`` where ``match`` was found, proposed or not."""
        known = min(len(match.tokens), len(emitted))
        confirmed = num_common(match.tokens, emitted)
        self.copies.see(match.length, confirmed, known, match.evidence)

    def see_model(self, kind: ProposalKind, num_drafted: int, accepted: int) -> None:
        """The model's tokens were judged in a round that had a match, too."""
        for place, rate in enumerate(self._models[kind][: min(num_drafted, accepted + 1)]):
            rate.see(place < accepted)


class Looked(NamedTuple):
    """What a lookup of ``num_proposed`` tokens, at a place where ``num_matched`` tokens stood as
    they had before, came to or would have: the text then said so many of them. Zeros where nothing
    was found."""

    num_matched: int
    num_proposed: int
    num_confirmed: int


class LookupChain:
    """What lookups alone would yield in a text, whatever its rounds really propose: a chain of
    rounds of K copied tokens, each of which begins where the one before was settled."""

    def __init__(self, prompt: Iterable[int], num_draft: int) -> None:
        self._index = NgramIndex(prompt)
        self._num_draft = num_draft
        self._match = NO_MATCH
        self._num_confirmed = 0

    def judged(self, num_drafted: int, accepted: int, emitted: Sequence[int]) -> tuple[Looked, ...]:
        """A lookup of so many tokens was really verified: the chain goes on behind it."""
        match, self._match = self._index.find(num_drafted), NO_MATCH
        self._index.extend(emitted)
        return (Looked(match.length, num_drafted, accepted),)

    def settled(self, emitted: Iterable[int]) -> tuple[Looked, ...]:
        """The text went on; the rounds that are settled by it: with their first wrong token, or the
        token behind K right ones, which a verification gives too."""
        found = []
        for token in emitted:
            if not self._match.length:
                self._match, self._num_confirmed = self._index.find(self._num_draft), 0
            match, place = self._match, self._num_confirmed
            if place < len(match.tokens) and match.tokens[place] == token:
                self._num_confirmed += 1
            else:
                found.append(Looked(match.length, len(match.tokens), place))
                self._match = NO_MATCH
            self._index.extend((token,))
        return tuple(found)


def num_common(tokens: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens both begin with."""
    count = 0
    for token, other in zip(tokens, others, strict=False):
        if token != other:
            break
        count += 1
    return count


class _Rate:
    """A share that fades towards what was seen lately."""

    __slots__ = ("_hits", "_prior", "_trials", "value")

    def __init__(self, prior: float) -> None:
        self._prior = PRIOR * prior
        self._hits = self._trials = 0.0
        self.value = prior

    def see(self, is_right: bool) -> None:
        self._hits = FADING * self._hits + is_right
        self._trials = FADING * self._trials + 1
        self.value = (self._prior + self._hits) / (PRIOR + self._trials)
