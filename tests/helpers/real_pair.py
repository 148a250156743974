"""The default pair with its real weights: prompts, and texts decoded in every way.

Plain decoding takes the prompts eight at a time, speculation one at a time or all together: a row's
tokens must depend neither on the mode nor on its batch mates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from engines.bundle import Bundle, open_bundle
from export.build.build import build
from export.build.options import BuildOptions
from export.fetch import fetch
from runtime.cli.prompts import many_prompts
from runtime.device.cores import available_cores
from runtime.loader import LoadedPair
from runtime.placement import place
from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback, ProposalKind
from runtime.spec.plan import PLAIN, RoundPlan, RoundReport
from runtime.text.prompt import Prompts
from runtime.text.tokenizer import Tokenizer
from tests.helpers.policies import Scripted
from tests.helpers.session_folder import built_once

MAX_TOKENS, MAX_LEN, BATCH = 64, 256, 8
NUM_DRAFT, NUM_BRANCHES = 4, 16
HIT, JIT, LOOKUP = ProposalKind.HIT, ProposalKind.JIT, ProposalKind.LOOKUP
MISS, REJECTED, CUT, MIXED, SWITCHED = "miss", "rejected", "cut", "mixed", "switched"
"""Paths of a round beside the sources of what it accepts: an outcome that was not prepared, a
drafted token that was rejected, a text that ends inside what a round emits, rows of several sources
in one round, and a round of another mode than the one before."""

Text = tuple[tuple[int, ...], FinishReason | None]
RoundPath = ProposalKind | str


@cache
def real_bundle(precision: str) -> Bundle:
    """The pair, built once a run of the tests (the fetched weights are kept between runs)."""

    def make(folder: Path) -> None:
        fetch("smollm2-135m")
        build(
            BuildOptions(
                target="smollm2-135m",
                draft="smollm2-135m-draft",
                out=folder / "bundle",
                precision=precision,
                max_len=MAX_LEN,
                max_batch=BATCH,
                num_draft=NUM_DRAFT,
                max_branches=NUM_BRANCHES,
            )
        )

    return open_bundle(built_once(f"real-{precision}", make) / "bundle")


@dataclass(frozen=True, slots=True)
class Way:
    """How the texts are decoded. ``together``: eight at a time."""

    mode: str
    drafter: Drafter = Drafter.MODEL
    fallback: Fallback = Fallback.ZERO
    together: bool = False
    switches: bool = False

    def __str__(self) -> str:
        return "-".join(
            (
                self.mode,
                self.drafter,
                self.fallback,
                *(["together"] if self.together else []),
                *(["switching"] if self.switches else []),
            )
        )

    @property
    def policy(self) -> Scripted | None:
        if not self.switches:
            return None
        sizes = {"num_draft": NUM_DRAFT, "num_branches": NUM_BRANCHES, "drafter": self.drafter}
        plans = [RoundPlan(mode, **sizes) for mode in ("ssd", "ssd", "ssd", "sd", "sd")]
        copies = replace(plans[-1], drafter=Drafter.LOOKUP)
        return Scripted([*plans, PLAIN, PLAIN, copies], NUM_DRAFT, NUM_BRANCHES)


PLAINLY = Way("ar", together=True)


def requests(bundle: Bundle, numbers: Iterable[int]) -> list[Request]:
    """The built-in dozen as chat (0 to 11) and as plain text to go on with (12 to 23); greedy and
    sampled in turn; every third text ends with its first sentence."""
    tokenizer = Tokenizer(bundle.tokenizer_path.read_bytes())
    prompts, texts = Prompts(bundle, tokenizer), many_prompts(None, None)
    ids = [prompts.encode_chat([{"role": "user", "content": text}]) for text in texts]
    ids += [prompts.encode(text) for text in texts]
    ends = frozenset(bundle.target.model.eos_token_ids)
    sentence_ends = ends | set(tokenizer.encode(".", add_special_tokens=False))
    return [
        Request(
            ids[number],
            SamplingParams(temperature=0.8 * (number % 2), seed=number),
            MAX_TOKENS,
            ends if number % 3 else sentence_ends,
            MAX_LEN,
        )
        for number in numbers
    ]


def decode(bundle: Bundle, way: Way, asked: Sequence[Request]) -> tuple[list[Text], set[RoundPath]]:
    """Each request's text, and the paths that its rounds have taken."""
    placement = place(way.mode, available_cores(), None, has_draft=True)
    assert placement.mode == way.mode, "these tests need two cores"
    reports: list[RoundReport] = []
    pair = LoadedPair(
        bundle,
        placement,
        verify="coupled",
        num_draft=NUM_DRAFT,
        num_branches=NUM_BRANCHES,
        drafter=way.drafter,
        fallback=way.fallback,
        policy=way.policy,
        on_round=reports.append,
    )
    batch = BATCH if way.together else 1
    try:
        for start in range(0, len(asked), batch):
            pair.scheduler.run(asked[start : start + batch])
    finally:
        pair.close()
    texts = [(tuple(each.generated), each.finish_reason) for each in asked]
    return texts, set(_paths(reports))


def _paths(reports: Sequence[RoundReport]) -> Iterable[RoundPath]:
    mode = None
    for report in reports:
        if len({row.kind for row in report.rows}) > 1:
            yield MIXED
        if mode not in (None, report.plan.mode):
            yield SWITCHED
        mode = report.plan.mode
        for row in report.rows:
            if row.accepted:
                yield row.kind
            if row.accepted < row.num_drafted:
                yield REJECTED
            if row.hit is False:
                yield MISS
            if row.num_emitted <= row.accepted:
                yield CUT
