"""Drafted blocks judged by the verification kernels' host form and by plain numpy."""

from __future__ import annotations

import numpy as np

from plugins.cuda.host import HostKernel
from plugins.law.reference import LawParams, Sampling
from plugins.verify.args import COUPLED, RATIO
from plugins.verify.sampled import Outcome, verify_coupled, verify_ratio
from tests.helpers.sampling_cases import DraftedBlock, as_float32
from tests.helpers.sampling_kernels import SMALLEST, Block, Grid, judge

ENTRIES = {"coupled": COUPLED, "ratio": RATIO}


def run(
    compiled: HostKernel, rule: str, block: DraftedBlock, grid: Grid = SMALLEST, **more: bool
) -> Outcome:
    launched = Block(
        block.logits,
        block.samplings,
        block.drafts,
        block.num_draft,
        block.vocab_size,
        block.q_ids,
        block.q_probs,
    )
    return judge(compiled, ENTRIES[rule], launched, grid, **more)


def reference(rule: str, block: DraftedBlock) -> Outcome:
    common = (block.samplings, block.vocab_size)
    logits, drafts, num_draft = as_float32(block.logits), block.drafts, block.num_draft
    if rule == "coupled":
        return verify_coupled(logits, drafts, num_draft, *common)
    return verify_ratio(logits, drafts, num_draft, block.q_ids, block.q_probs, *common)


def verdicts(outcome: Outcome) -> list[tuple[int, int, int]]:
    arrays = (outcome.accepted, outcome.next, outcome.status)
    return list(zip(*(each.tolist() for each in arrays), strict=True))


def one_block(logits, drafts=(), params=None, q=(), seed=0, num_draft=None) -> DraftedBlock:
    """One sequence; q is a list of {id: prob}, one a draft."""
    rows = np.array([logits], np.float32)
    count = len(drafts)
    support = max([len(each) for each in q], default=1)
    ids = np.full((1, count, support), -1, np.int32)
    probs = np.zeros((1, count, support))
    for place, each in enumerate(q):
        ids[0, place, : len(each)] = list(each)
        probs[0, place, : len(each)] = list(each.values())
    return DraftedBlock(
        rows,
        [Sampling(params or LawParams(temperature=1.0), seed)],
        np.array(drafts, np.int64).reshape(1, count),
        np.array([count if num_draft is None else num_draft]),
        rows.shape[-1],
        ids,
        probs,
    )
