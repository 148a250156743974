"""From the arguments of ``plan`` to a question for the planner, and what it rests on."""

from __future__ import annotations

import argparse
from itertools import pairwise

from engines.bundle import Bundle
from runtime.cli.console import busy
from runtime.plan.check import LogCheck, check
from runtime.plan.planner import Question
from runtime.spec.cost.economics import Devices
from runtime.spec.cost.laws import PUBLISHED_EXPONENT, Laws, laws_of_acceptance, laws_of_log
from runtime.spec.cost.times import ByTokens, PairTimes
from runtime.spec.outcome_log import OutcomeLog, read_log

MOST_DRAFTS, MOST_BRANCHES = 16, 32
"""Searched where no bundle and no option sets limits: prepared outcomes cost memory."""


def question_of(args: argparse.Namespace, bundle: Bundle | None) -> Question:
    """What checked arguments ask. Without step times, or laws, the bundle is measured for them."""
    limits = None if bundle is None else bundle.manifest.limits
    # A bundle without a draft, which given step times do not need, sets no limits: 0.
    drafts = args.max_draft or (limits and limits.num_draft) or MOST_DRAFTS
    branches = args.max_branches or (limits and limits.max_branches) or MOST_BRANCHES
    notes: list[str] = []
    if args.target_ms is not None:
        times = _given_times(args, notes)
    else:
        assert bundle is not None
        times = _measured_times(args, bundle, drafts, branches, notes)
    laws = _laws(args, bundle, drafts, branches, notes)
    shared = Devices(1, 0) if args.target_ms is None else Devices(1, 1)
    return Question(
        times=times,
        laws=laws,
        batch=args.batch,
        devices=args.devices or shared,
        most_drafts=drafts,
        most_branches=branches,
        notes=tuple(notes),
    )


def _given_times(args: argparse.Namespace, notes: list[str]) -> PairTimes:
    target: ByTokens = args.target_ms
    draft: ByTokens = args.draft_ms
    flat = [
        name for name, curve in (("target", target), ("draft", draft)) if len(curve.tokens) == 1
    ]
    if flat:
        notes.append(
            f"a call of the {' or the '.join(flat)} takes as long whatever its size; where it does "
            "not, give a curve (--help)"
        )
    for option, curve in (
        ("--target-ms", target),
        ("--draft-ms", draft),
        ("--beside-target-ms", args.beside_target_ms),
        ("--beside-draft-ms", args.beside_draft_ms),
    ):
        if curve is not None and any(a > b for a, b in pairwise(curve.seconds_at)):
            notes.append(
                f"{option} has larger calls that take less time, which is seldom so; settings that "
                "seem to gain by it may not"
            )
    if args.devices and not args.devices.draft and not args.beside_target_ms:
        notes.append(
            "on shared devices the target is as fast beside the draft as alone, which is seldom "
            "so; give --beside-target-ms"
        )
    return PairTimes(
        target,
        args.beside_target_ms or target,
        draft,
        args.beside_draft_ms or draft,
        args.exchange_ms / 1e3,
    )


def _measured_times(
    args: argparse.Namespace, bundle: Bundle, drafts: int, branches: int, notes: list[str]
) -> PairTimes:
    from runtime.plan.bundle import require_pair, times_of

    require_pair(bundle, args.batch, drafts, branches)
    with busy("measuring step times", quiet=args.quiet):
        times = times_of(bundle, drafts, branches, args.batch)
    notes.append("step times measured on this machine, each engine while the other one rests")
    return times


def _laws(
    args: argparse.Namespace, bundle: Bundle | None, drafts: int, branches: int, notes: list[str]
) -> Laws:
    if args.acceptance is not None:
        exponent = PUBLISHED_EXPONENT if args.rank_exponent is None else args.rank_exponent
        notes.append(
            f"F guesses of a bonus token miss with probability F ** -{exponent:g} "
            "(--rank-exponent; --outcomes measures it), and nothing in a text repeats itself"
        )
        return laws_of_acceptance(args.acceptance, exponent, branches)
    if args.outcomes is not None:
        return _logged_laws(read_log(args.outcomes), notes)
    from runtime.plan.bundle import laws_of, require_pair

    assert bundle is not None
    require_pair(bundle, 1, drafts, branches)
    notes.append("outcomes of a few built-in prompts; log your own with bench --log-outcomes")
    with busy("reading a few texts", quiet=args.quiet):
        return laws_of(bundle, drafts, branches)


def _logged_laws(log: OutcomeLog, notes: list[str]) -> Laws:
    laws = laws_of_log(log)
    seen = check(log, laws)
    notes.append(
        f"{len(log.rounds):,} logged rounds of {log.header.mode}"
        + ("" if seen is None else f"; {_in_words(seen)}")
    )
    notes.append(
        f"the log drafted up to K = {log.header.num_draft}; for longer drafts its last token's "
        "acceptance goes on"
    )
    if not log.header.num_ranks:
        notes.append(
            f"the log has no ranks: F guesses of a bonus token miss with probability F ** "
            f"-{PUBLISHED_EXPONENT}"
        )
    return laws


def _in_words(seen: LogCheck) -> str:
    words = f"{seen.tokens_round:.2f} tokens a round (predicted {seen.predicted_tokens_round:.2f})"
    if seen.hit_rate is None or seen.predicted_hit_rate is None:
        return words
    return f"{words}, hit rate {seen.hit_rate:.0%} (predicted {seen.predicted_hit_rate:.0%})"
