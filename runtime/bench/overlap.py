"""``bench overlap``: how much of the drafting the target's verifications hide."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engines.errors import UsageError
from runtime.bench.figures import Spread, spread
from runtime.bench.kind import Kind, Show
from runtime.cli.options import FALLBACKS, OpenLlm, check_fits, whole
from runtime.cli.prompts import many_prompts
from runtime.cli.report import number, percent, table
from runtime.trace.timeline import Timeline, overlap

if TYPE_CHECKING:
    from runtime.stats import Stats

DRAFTING, VERIFYING = ("prepare",), ("verify",)
BUDGET_SHARE = 0.03
"""Of a verification: what may lie between it and the next one where its outcome was a hit."""
WARM_UP_TOKENS = 16

DESCRIPTION = """\
Answer prompts in ssd mode and record who worked when: how much of the drafting was hidden behind
verifications, and how long the target waited between two of them, after a hit and after a miss."""

EXAMPLES = """\
examples:
  python -m runtime bench overlap --bundle engines/bundles/demo
  python -m runtime bench overlap --bundle engines/bundles/demo --fallback zero --json
"""

FORMULAS = {
    "hidden": "milliseconds of preparing outcomes while the target verified; exposed: while it "
    "did not",
    "gap_share": "(start of the next verification - end of this one) / length of this one, by "
    "whether this one's outcome had been prepared; so round time - verify time over verify time",
    "exposed_share_of_rounds": "exposed / time from first to last verification of the texts",
}


@dataclass(frozen=True, slots=True)
class Turn:
    """A verification and the wait behind it, until the next one of the same text.

    hit: whether its outcome had been prepared, for every row that it judged.
    """

    verify_s: float
    gap_s: float
    hit: bool


@dataclass(frozen=True, slots=True)
class Gaps:
    """Rounds that went one way: milliseconds, and the gap's share of the verification."""

    verify_ms: Spread
    gap_ms: Spread
    gap_share: Spread


@dataclass(frozen=True, slots=True)
class OverlapFigures:
    """``after_hit`` and ``after_miss`` are None where no round went that way."""

    num_draft: int
    num_branches: int
    fallback: str
    num_rounds: int
    num_tokens: int
    hit_rate: float | None
    acceptance_length: float
    hidden_ms: float
    exposed_ms: float
    hidden_share: float
    exposed_share_of_rounds: float
    prepare_ms: Spread
    after_hit: Gaps | None
    after_miss: Gaps | None
    budget_share: float

    def as_text(self) -> str:
        """One table and the sums."""
        rows = [
            [
                name,
                str(gaps.gap_ms.num),
                number(gaps.verify_ms.median, 3),
                number(gaps.gap_ms.median, 3),
                f"{gaps.gap_ms.low:.3f} - {gaps.gap_ms.high:.3f}",
                f"{gaps.gap_share.median:.1%}",
                f"{gaps.gap_share.low:.1%} - {gaps.gap_share.high:.1%}",
                budget,
            ]
            for name, gaps, budget in (
                ("hit", self.after_hit, f"{self.budget_share:.0%}"),
                ("miss", self.after_miss, "-"),
            )
            if gaps is not None
        ]
        headers = ("outcome", "rounds", "verify ms", "gap ms", "quartiles", "gap / verify")
        rounds = (
            f"K = {self.num_draft}, W = {self.num_branches}, fallback {self.fallback}: "
            f"{self.num_tokens} tokens in {self.num_rounds} rounds, acceptance length "
            f"{self.acceptance_length:.2f}, hit rate {percent(self.hit_rate)}"
        )
        hidden = (
            f"drafting hidden: {self.hidden_ms:.1f} ms, exposed: {self.exposed_ms:.1f} ms "
            f"({self.hidden_share:.1%} hidden); exposed share of all round time: "
            f"{self.exposed_share_of_rounds:.1%}"
        )
        prepare = self.prepare_ms
        preparation = (
            f"one preparation: {prepare.median:.3f} ms ({prepare.low:.3f} - {prepare.high:.3f})"
        )
        shown = table((*headers, "quartiles", "budget"), rows)
        return "\n".join((rounds, "", shown, hidden, preparation))


def turns_of(timeline: Timeline, num_skipped: int = 0) -> list[Turn]:
    """The rounds whose outcome was looked up, from a timeline that kept everything; without the
    first ``num_skipped`` rounds.

    Verifications are counted as rounds are, from 1; the marks "hit" and "miss" of a round say how
    it began, which is how the one before it ended. Raises UsageError for a timeline that is full.
    """
    if timeline.num_dropped:
        raise UsageError("the timeline is full; measure fewer tokens")
    verifies = [s for s in timeline.spans if (s.lane, s.label) == ("target", "verify")]
    began_with: dict[int, list[bool]] = {}
    for moment in timeline.moments:
        if moment.label in ("hit", "miss"):
            began_with.setdefault(int(moment.facts["round"]), []).append(moment.label == "hit")
    turns = []
    for round_number, hits in sorted(began_with.items()):
        if round_number - 1 <= num_skipped:
            continue
        before, after = verifies[round_number - 2 : round_number]
        verify_s, gap_s = before.end_s - before.start_s, after.start_s - before.end_s
        turns.append(Turn(verify_s, gap_s, all(hits)))
    return turns


def gaps_of(turns: Sequence[Turn], *, hit: bool) -> Gaps | None:
    """Of those that ended so."""
    chosen = [turn for turn in turns if turn.hit is hit]
    if not chosen:
        return None
    return Gaps(
        verify_ms=spread([turn.verify_s * 1e3 for turn in chosen]),
        gap_ms=spread([turn.gap_s * 1e3 for turn in chosen]),
        gap_share=spread([turn.gap_s / turn.verify_s for turn in chosen]),
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bundle", type=Path, required=True, metavar="DIR", help="bundle directory to measure"
    )
    for option, metavar, what in (
        ("--num-draft", "K", "tokens drafted"),
        ("--branches", "W", "outcomes prepared"),
    ):
        parser.add_argument(
            option,
            type=whole(1),
            metavar=metavar,
            help=f"{what} (default: what the bundle was built for)",
        )
    parser.add_argument(
        "--fallback",
        choices=FALLBACKS,
        default="auto",
        help="what a round goes on with after a miss, as for generate (default: auto)",
    )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help=".txt with a prompt a line, or .jsonl (default: a built-in dozen)",
    )
    parser.add_argument(
        "--num-prompts",
        type=whole(1),
        default=6,
        metavar="N",
        help="use the first N prompts (default: 6)",
    )
    parser.add_argument(
        "--max-tokens",
        type=whole(2),
        default=128,
        metavar="N",
        help="longest answer, in tokens (default: 128)",
    )


def _measure(args: argparse.Namespace, show: Show) -> OverlapFigures:
    open_llm: OpenLlm = args.open_llm
    texts = many_prompts(args.prompts, args.num_prompts)
    with open_llm(
        args.bundle,
        mode="ssd",
        num_draft=args.num_draft,
        drafter="model",
        branches=args.branches,
        max_batch=1,
        fallback=args.fallback,
        trace=True,
    ) as llm:
        if llm.mode != "ssd" or llm.timeline is None:
            raise UsageError(f"bench overlap measures ssd, and cannot here: {llm.note}")
        prompts = [llm.encode(text, chat=llm.has_chat_template) for text in texts]
        for i, ids in enumerate(prompts, start=1):
            check_fits(f"prompt {i}", len(ids), llm.limits.max_len)
        llm.generate(prompts[0], max_tokens=WARM_UP_TOKENS)
        num_warm = _counts(llm.timeline)
        stats = []
        with show("ssd", len(prompts)) as tick:
            for done, ids in enumerate(prompts, start=1):
                stats.append(llm.generate(ids, max_tokens=args.max_tokens).stats)
                tick(done, f"{stats[-1].tokens_per_second:.1f} tokens/s")
        settings = llm.settings
    return figures_of(
        llm.timeline,
        num_warm,
        stats,
        num_draft=settings.num_draft,
        num_branches=settings.num_branches,
        fallback=settings.fallback.value,
    )


def _counts(timeline: Timeline) -> int:
    """Verifications so far."""
    return sum(span.label == "verify" for span in timeline.spans)


def figures_of(
    timeline: Timeline,
    num_warm: int,
    stats: Sequence[Stats],
    *,
    num_draft: int,
    num_branches: int,
    fallback: str,
) -> OverlapFigures:
    """Figures of what came after the first ``num_warm`` verifications, which gave ``stats``."""
    verifies = [s for s in timeline.spans if (s.lane, s.label) == ("target", "verify")]
    turns = turns_of(timeline, num_warm)
    start_s = verifies[num_warm].start_s
    kept = [span for span in timeline.spans if span.start_s >= start_s]
    hidden = overlap(kept, of="draft", labels=DRAFTING, behind="target", behind_labels=VERIFYING)
    looked_up = sum(each.num_rounds_after_hit + each.num_rounds_after_miss for each in stats)
    num_rounds = sum(each.num_rounds for each in stats)
    decode_s = sum(each.decode_s for each in stats)
    return OverlapFigures(
        num_draft=num_draft,
        num_branches=num_branches,
        fallback=fallback,
        num_rounds=num_rounds,
        num_tokens=sum(each.num_tokens for each in stats),
        hit_rate=sum(each.num_hits or 0 for each in stats) / looked_up if looked_up else None,
        acceptance_length=sum(each.num_emitted for each in stats) / max(1, num_rounds),
        hidden_ms=hidden.hidden_s * 1e3,
        exposed_ms=hidden.exposed_s * 1e3,
        hidden_share=hidden.hidden_share,
        exposed_share_of_rounds=hidden.exposed_s / decode_s if decode_s else 0.0,
        prepare_ms=spread([(s.end_s - s.start_s) * 1e3 for s in kept if s.label in DRAFTING]),
        after_hit=gaps_of(turns, hit=True),
        after_miss=gaps_of(turns, hit=False),
        budget_share=BUDGET_SHARE,
    )


KIND = Kind(
    name="overlap",
    purpose="how much of the drafting the target's verifications hide",
    description=DESCRIPTION,
    examples=EXAMPLES,
    packages=("numpy", "onnxruntime", "tokenizers"),
    formulas=FORMULAS,
    add_options=_add_options,
    measure=_measure,
)
