"""Counts and times of generated text: of one request, or of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import MODES
from runtime.workers import mailbox as mail
from runtime.workers.mailbox import Kind

PREPARING = "ssd"
"""The mode in which outcomes are prepared, and so hit or missed."""
NO_FIGURES = (0.0,) * mail.NUM_FIGURES
"""A reading of the mailbox's figures before anything has run."""


@dataclass(frozen=True, slots=True)
class Span:
    """From where to where the device's own sums went while a request ran, each (first, last).

    All requests of a device read the same sums, so where two ran side by side their spans
    overlap, and what they took together is what the spans cover. ``decode`` is on the clock.
    """

    decode: tuple[float, float] = (0.0, 0.0)
    verify: tuple[float, float] = (0.0, 0.0)
    draft: tuple[float, float] = (0.0, 0.0)
    exposed: tuple[float, float] = (0.0, 0.0)
    predicted_hits: tuple[float, float] = (0.0, 0.0)
    num_predicted: tuple[float, float] = (0.0, 0.0)


NO_SPAN = Span()


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Verifications whose drafts came from one source, in every mode: how many, and how many
    tokens were drafted and accepted in them, whether or not the text ended inside a block."""

    num_rounds: int
    num_drafted: int
    num_accepted: int


@dataclass(frozen=True, slots=True)
class Stats:
    """One generation's counts and times. Rounds and tokens are sums over the batch's rows.

    acceptance_length = emitted tokens / verifications, the bonus token included. Emitted are the
    tokens of the text and the end-of-sequence or stop token that ended it; ``num_discarded``
    counts what blocks held beyond, a stop string's tokens included. ``num_accepted`` counts the
    drafted tokens among the emitted ones, of the ``num_drafted`` that were verified.
    ``histogram[k]`` counts verifications that accepted k drafted tokens.

    A round begins with a hit, with drafts made just in time (``num_jit``), with looked-up ones
    (``num_lookup``) or with none. Whether an outcome had been prepared shows when the next round
    begins, so a text's last outcome is neither hit nor miss. All of these count rounds of ``ssd``
    alone, and ``num_hits`` is None where there were none. ``predicted_hit_rate`` is the mean of
    what the fan-out expected for the same outcomes; None where other requests ran, too: the device
    keeps one mean for all.

    ``sources`` counts every verification by where its drafts came from: ``hit`` and ``jit`` (the
    draft model, ahead and just in time), ``lookup``, ``none``; those that never were are left out.

    ``num_cached`` counts the prompt's tokens whose cache rows an earlier text had left, so that
    they were not fed again.

    ``rounds_by_mode`` counts the verifications of each mode that ran (more than one only where a
    policy chose, ``auto``).

    Seconds: ``prompt_s`` from the row's start to the first verification, ``decode_s`` from there
    to the last token. ``verify_s`` and ``draft_s``: how long both sides worked meanwhile, for
    all rows; ``exposed_s``: the part of ``draft_s`` that the target waited for. Requests that
    ran side by side shared these seconds: sums over them count them several times. ``together``
    adds requests up. The draft's side is read when a verification ends: what it prepared beside a
    text's last one counts for the next text, as do ``predicted_hit_rate``'s last outcomes.
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
    num_cached: int = 0
    num_jit: int = 0
    num_lookup: int = 0
    num_hits_after_hit: int = 0
    num_rounds_after_hit: int = 0
    num_hits_after_miss: int = 0
    num_rounds_after_miss: int = 0
    predicted_hit_rate: float | None = None
    exposed_s: float = 0.0
    rounds_by_mode: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, SourceCounts] = field(default_factory=dict)
    span: Span = NO_SPAN

    @property
    def acceptance_length(self) -> float:
        return self.num_emitted / self.num_rounds if self.num_rounds else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of outcomes that had been prepared; None where none was looked up."""
        known = self.num_rounds_after_hit + self.num_rounds_after_miss
        return self.num_hits / known if self.num_hits is not None and known else None

    @property
    def hidden_s(self) -> float:
        """Seconds the draft worked while the target did, too."""
        return max(0.0, self.draft_s - self.exposed_s)

    @property
    def overhead_s(self) -> float:
        """Seconds of decoding in which neither engine was waited for: the host, hand-overs."""
        return max(0.0, self.decode_s - self.verify_s - self.exposed_s)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens / seconds from the end of the prompt to the last token."""
        return self.num_tokens / self.decode_s if self.decode_s else 0.0


@dataclass(frozen=True, slots=True)
class Shared:
    """The device's own seconds over several requests, none counted twice, and what the fan-out
    expected of their outcomes (None: nothing was predicted)."""

    decode_s: float
    verify_s: float
    draft_s: float
    exposed_s: float
    predicted_hit_rate: float | None

    @property
    def hidden_s(self) -> float:
        """Seconds the draft worked while the target did, too."""
        return max(0.0, self.draft_s - self.exposed_s)

    @property
    def overhead_s(self) -> float:
        """Seconds of decoding in which neither engine was waited for: the host, hand-overs."""
        return max(0.0, self.decode_s - self.verify_s - self.exposed_s)


def together(stats: Iterable[Stats]) -> Shared:
    """Add up requests of one device that ran side by side, one after another or both."""
    spans = [each.span for each in stats]
    num_predicted = covered(span.num_predicted for span in spans)
    predicted_hits = covered(span.predicted_hits for span in spans)
    return Shared(
        decode_s=covered(span.decode for span in spans),
        verify_s=covered(span.verify for span in spans),
        draft_s=covered(span.draft for span in spans),
        exposed_s=covered(span.exposed for span in spans),
        predicted_hit_rate=predicted_hits / num_predicted if num_predicted else None,
    )


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of what intervals (first, last) cover, overlaps counted once."""
    total, reached = 0.0, float("-inf")
    for first, last in sorted(intervals):
        total += max(0.0, last - max(first, reached))
        reached = max(reached, last)
    return total


class Tally:
    """What is counted for one request, or for several together, while they run.

    ``hits[after_hit]`` and ``known[after_hit]``: outcomes that had been prepared, of those known.
    """

    def __init__(self, num_draft: int) -> None:
        self.histogram = [0] * (num_draft + 1)
        self.rounds = [0] * len(Kind)
        self.modes = [0] * len(MODES)
        self.sources = {kind: [0, 0, 0] for kind in ProposalKind}
        self.hits = [0, 0]
        self.known = [0, 0]
        self.num_tokens = self.num_emitted = self.num_accepted = self.num_drafted = 0
        self.num_cached = 0  # of the prompt
        self.prompt_s = 0.0
        self.decode = (0.0, 0.0)  # from the first verification to the last outcome, on the clock
        self._blocks: list[tuple[int, int]] = []  # of each round: (emitted, accepted)

    def add(self, other: Tally) -> None:
        """Count another's rounds too. Times are not sums: rows run side by side."""
        for mine, others in (
            (self.histogram, other.histogram),
            (self.rounds, other.rounds),
            (self.modes, other.modes),
            (self.hits, other.hits),
            (self.known, other.known),
        ):
            mine[:] = [a + b for a, b in zip(mine, others, strict=True)]
        for kind, theirs in other.sources.items():
            self.sources[kind] = [a + b for a, b in zip(self.sources[kind], theirs, strict=True)]
        self.num_tokens += other.num_tokens
        self.num_emitted += other.num_emitted
        self.num_accepted += other.num_accepted
        self.num_drafted += other.num_drafted
        self.num_cached += other.num_cached

    def round(
        self,
        mode: str,
        kind: int,
        before: int | None,
        num_drafted: int,
        accepted: int,
        emitted: int,
    ) -> None:
        """One row's round of that mode: how it began, how its last one had (None: nothing was
        prepared for it), and how many of the block's tokens count."""
        self.histogram[accepted] += 1
        self.rounds[kind] += mode == PREPARING
        self.modes[MODES.index(mode)] += 1
        # An empty proposal came from nowhere, whoever was asked.
        counts = self.sources[Kind(kind).source if num_drafted else ProposalKind.NONE]
        counts[0] += 1
        counts[1] += num_drafted
        counts[2] += accepted
        self.num_drafted += num_drafted
        self.num_emitted += emitted
        self.num_accepted += min(accepted, emitted)
        self._blocks.append((emitted, accepted))
        if before is not None:
            after_hit = before == Kind.HIT
            self.known[after_hit] += 1
            self.hits[after_hit] += Kind(kind).was_prepared

    def cut(self, num_emitted: int) -> None:
        """Only the first ``num_emitted`` tokens stay: a stop string has taken back the others,
        which may go back over several rounds."""
        while self.num_emitted > num_emitted:
            emitted, accepted = self._blocks.pop()
            kept = max(0, emitted - (self.num_emitted - num_emitted))
            self.num_emitted -= emitted - kept
            self.num_accepted -= min(accepted, emitted) - min(accepted, kept)
            self._blocks += [(kept, accepted)] if kept else []

    def stats(
        self,
        begin: Sequence[float],
        end: Sequence[float],
        *,
        prepares: bool,
        is_alone: bool = True,
    ) -> Stats:
        """The counts, with the seconds between two readings of the mailbox's figures.

        ``prepares``: there are hits and misses, even before there was a round. ``is_alone``: what
        was predicted in between was predicted for what is counted here.
        """
        by_mode = {mode: num for mode, num in zip(MODES, self.modes, strict=True) if num}
        prepares |= PREPARING in by_mode
        span = Span(
            decode=self.decode,
            verify=(begin[mail.VERIFY_S], end[mail.VERIFY_S]),
            draft=(begin[mail.DRAFT_S], end[mail.DRAFT_S]),
            exposed=(begin[mail.EXPOSED_S], end[mail.EXPOSED_S]),
            predicted_hits=(begin[mail.PREDICTED_HITS], end[mail.PREDICTED_HITS]),
            num_predicted=(begin[mail.NUM_PREDICTED], end[mail.NUM_PREDICTED]),
        )
        num_predicted = _length(span.num_predicted)
        blocks = sum((k + 1) * count for k, count in enumerate(self.histogram))
        return Stats(
            num_tokens=self.num_tokens,
            num_rounds=sum(self.histogram),
            num_emitted=self.num_emitted,
            num_hits=sum(self.hits) if prepares else None,
            histogram=tuple(self.histogram),
            prompt_s=self.prompt_s,
            decode_s=_length(self.decode),
            verify_s=_length(span.verify),
            draft_s=_length(span.draft),
            num_discarded=blocks - self.num_emitted,
            num_accepted=self.num_accepted,
            num_drafted=self.num_drafted,
            num_cached=self.num_cached,
            num_jit=self.rounds[Kind.JIT],
            num_lookup=self.rounds[Kind.LOOKUP] + self.rounds[Kind.OVERRULED],
            num_hits_after_hit=self.hits[True],
            num_rounds_after_hit=self.known[True],
            num_hits_after_miss=self.hits[False],
            num_rounds_after_miss=self.known[False],
            predicted_hit_rate=_length(span.predicted_hits) / num_predicted
            if is_alone and num_predicted
            else None,
            exposed_s=_length(span.exposed),
            rounds_by_mode=by_mode,
            sources={
                kind.name.lower(): SourceCounts(*counts)
                for kind, counts in self.sources.items()
                if counts[0]
            },
            span=span,
        )


def _length(interval: tuple[float, float]) -> float:
    first, last = interval
    return last - first
