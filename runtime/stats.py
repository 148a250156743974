"""Counts and times of generated text: of one request, or of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runtime.workers import mailbox as mail
from runtime.workers.mailbox import Kind

NO_FIGURES = (0.0,) * (mail.VERIFY_S + 1)
"""A reading of the mailbox's figures before anything has run."""


@dataclass(frozen=True, slots=True)
class Stats:
    """One generation's counts and times. Rounds and tokens are sums over the batch's rows.

    acceptance_length = emitted tokens / verifications, the bonus token included. A block counts
    as emitted up to where its text ended, an end-of-sequence token included; ``num_discarded``
    counts the rest. ``num_accepted`` counts the drafted tokens among the emitted ones, of the
    ``num_drafted`` that were verified. ``histogram[k]`` counts verifications that accepted k
    drafted tokens.

    A round begins with a hit, with drafts made just in time (``num_jit``), with looked-up ones
    (``num_lookup``) or with none. Whether an outcome had been prepared shows when the next round
    begins, so a text's last outcome is neither hit nor miss. ``predicted_hit_rate`` is the mean
    of what the fan-out expected for the same outcomes.

    Seconds: ``prompt_s`` from the row's start to the first verification, ``decode_s`` from there
    to the last token. ``verify_s`` and ``draft_s``: how long both sides worked meanwhile, for
    all rows; ``exposed_s``: the part of ``draft_s`` that the target waited for.
    """

    num_tokens: int
    num_rounds: int
    num_emitted: int
    num_hits: int | None
    histogram: tuple[int, ...]
    prompt_s: float
    decode_s: float
    verify_s: float
    draft_s: float
    num_discarded: int = 0
    num_accepted: int = 0
    num_drafted: int = 0
    num_jit: int = 0
    num_lookup: int = 0
    num_hits_after_hit: int = 0
    num_rounds_after_hit: int = 0
    num_hits_after_miss: int = 0
    num_rounds_after_miss: int = 0
    predicted_hit_rate: float | None = None
    exposed_s: float = 0.0

    @property
    def acceptance_length(self) -> float:
        return self.num_emitted / self.num_rounds if self.num_rounds else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of outcomes that had been prepared; None where nothing is prepared."""
        if self.num_hits is None:
            return None
        known = self.num_rounds_after_hit + self.num_rounds_after_miss
        return self.num_hits / known if known else 0.0

    @property
    def hidden_s(self) -> float:
        """Seconds the draft worked while the target did, too."""
        return max(0.0, self.draft_s - self.exposed_s)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens / seconds from the end of the prompt to the last token."""
        return self.num_tokens / self.decode_s if self.decode_s else 0.0


class Tally:
    """What is counted for one request, or for several together, while they run.

    ``hits[after_hit]`` and ``known[after_hit]``: outcomes that had been prepared, of those known.
    """

    def __init__(self, num_draft: int) -> None:
        self.histogram = [0] * (num_draft + 1)
        self.rounds = [0] * len(Kind)
        self.hits = [0, 0]
        self.known = [0, 0]
        self.num_tokens = self.num_emitted = self.num_accepted = self.num_drafted = 0
        self.prompt_s = self.decode_s = 0.0

    def add(self, other: Tally) -> None:
        """Count another's rounds too. Times are not sums: rows run side by side."""
        for mine, others in (
            (self.histogram, other.histogram),
            (self.rounds, other.rounds),
            (self.hits, other.hits),
            (self.known, other.known),
        ):
            mine[:] = [a + b for a, b in zip(mine, others, strict=True)]
        self.num_tokens += other.num_tokens
        self.num_emitted += other.num_emitted
        self.num_accepted += other.num_accepted
        self.num_drafted += other.num_drafted

    def round(
        self, kind: int, before: int | None, num_drafted: int, accepted: int, emitted: int
    ) -> None:
        """One row's round: how it began, how its last one had (None: it is the first), and how
        many of the block's tokens count."""
        self.histogram[accepted] += 1
        self.rounds[kind] += 1
        self.num_drafted += num_drafted
        self.num_emitted += emitted
        self.num_accepted += min(accepted, emitted)
        if before is not None:
            after_hit = before == Kind.HIT
            self.known[after_hit] += 1
            self.hits[after_hit] += kind == Kind.HIT

    def stats(self, begin: Sequence[float], end: Sequence[float], *, prepares: bool) -> Stats:
        """The counts, with the seconds between two readings of the mailbox's figures."""
        spent = [after - before for before, after in zip(begin, end, strict=True)]
        num_predicted = spent[mail.NUM_PREDICTED]
        blocks = sum((k + 1) * count for k, count in enumerate(self.histogram))
        return Stats(
            num_tokens=self.num_tokens,
            num_rounds=sum(self.histogram),
            num_emitted=self.num_emitted,
            num_hits=sum(self.hits) if prepares else None,
            histogram=tuple(self.histogram),
            prompt_s=self.prompt_s,
            decode_s=self.decode_s,
            verify_s=spent[mail.VERIFY_S],
            draft_s=spent[mail.DRAFT_S],
            num_discarded=blocks - self.num_emitted,
            num_accepted=self.num_accepted,
            num_drafted=self.num_drafted,
            num_jit=self.rounds[Kind.JIT],
            num_lookup=self.rounds[Kind.LOOKUP],
            num_hits_after_hit=self.hits[True],
            num_rounds_after_hit=self.known[True],
            num_hits_after_miss=self.hits[False],
            num_rounds_after_miss=self.known[False],
            predicted_hit_rate=spent[mail.PREDICTED_HITS] / num_predicted
            if num_predicted
            else None,
            exposed_s=spent[mail.EXPOSED_S],
        )
