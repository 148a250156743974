"""Both rules emit the target's law: chi-square of real draws against exact probabilities.

Seeds are fixed, so the tests cannot flicker. Each limit would be exceeded by a correct rule
with probability 1e-6; the last test shows that a wrong rule is found at these sizes.
"""

from __future__ import annotations

import math
from itertools import product
from statistics import NormalDist

import numpy as np
import pytest

from runtime.sampling.api import rule
from runtime.sampling.coupled import choose
from runtime.sampling.logits import law
from runtime.sampling.noise import gumbel
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Lookup, Nothing, Proposal

pytestmark = pytest.mark.stat

V = 4
rng = np.random.default_rng(2024)
TARGET = (rng.standard_normal((V + 1, V)) * 1.2).astype(np.float32)  # row: the last token
DRAFT = (TARGET + rng.standard_normal((V + 1, V)) * 0.8).astype(np.float32)
START = V


def chi_square_excess(counts: np.ndarray, probs: np.ndarray) -> float:
    """Chi-square over what it exceeds with probability 1e-6 (Wilson and Hilferty)."""
    assert counts[probs == 0].sum() == 0, "a token of probability 0 was emitted"
    counts, expected = counts[probs > 0], probs[probs > 0] * counts.sum()
    assert expected.min() > 5
    degrees = counts.size - 1
    z = NormalDist().inv_cdf(1 - 1e-6)
    limit = degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3
    return float(((counts - expected) ** 2 / expected).sum() / limit)


def test_gumbel_argmax_draws_from_the_softmax():
    row = np.array([2, 1.5, 1, 0.5, -1, -3], np.float32)
    for cut in ({}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}):
        params = SamplingParams(temperature=0.8, seed=11, **cut)
        counts = np.zeros(row.size)
        for position in range(6000):
            counts[choose(row, params, gumbel(params.seed, position, row.size))] += 1
        assert chi_square_excess(counts, law(row, params)) < 1


def joint_law(params: SamplingParams) -> np.ndarray:
    """Exact probabilities of the first three tokens, [V, V, V]."""
    probs = law(TARGET, params)
    joint = np.zeros((V, V, V))
    for a, b, c in product(range(V), repeat=3):
        joint[a, b, c] = probs[START, a] * probs[a, b] * probs[b, c]
    return joint


def decode(made, params: SamplingParams, kinds: str) -> list[int]:
    """Three tokens by rounds of two drafts; `kinds` names the proposal of each round."""
    tokens: list[int] = []
    while len(tokens) < 3:
        first, last = len(tokens), tokens[-1] if tokens else START
        drafts, laws, context = [], [], last
        for depth in range(2):
            context, q = made.draft_token(DRAFT[context], params, first + depth, num_prepared=1)
            drafts.append(context)
            laws.append(q)
        proposals: dict[str, Proposal] = {
            "d": Drafted(tuple(drafts), None if None in laws else tuple(laws)),
            "l": Lookup((0, 1)),
            "n": Nothing(),
        }
        proposal = proposals[kinds[len(tokens) % len(kinds)]]
        logits = TARGET[[last, *proposal.tokens]]
        verdict = made.verify(logits, proposal, params, first)
        tokens += [*proposal.tokens[: verdict.accepted], verdict.bonus]
    return tokens[:3]


@pytest.mark.parametrize(
    ("kinds", "cut"),
    [("d", {}), ("dln", {"top_k": 3, "top_p": 0.95})],
    ids=["drafted", "mixed proposals, cut"],
)
@pytest.mark.parametrize(
    "made",
    [rule("coupled"), rule("ratio"), rule("ratio", saguaro=0.2), rule("ratio", saguaro=0.0)],
    ids=["coupled", "ratio", "saguaro 0.2", "saguaro 0"],
)
def test_rounds_emit_the_joint_law_of_three_tokens(made, kinds, cut):
    """S1 to S3, S16, S18: both rules and every proposal, whatever the draft's law is made into."""
    counts = np.zeros((V, V, V))
    base = SamplingParams(temperature=0.9, **cut)
    for seed in range(3000):
        params = SamplingParams(temperature=0.9, seed=seed, **cut)
        counts[tuple(decode(made, params, kinds))] += 1
    joint = joint_law(base)
    rare = (joint > 0) & (joint * counts.sum() <= 6)  # pooled, so that chi-square applies
    pooled_counts = np.append(counts[~rare], counts[rare].sum())
    pooled_probs = np.append(joint[~rare], joint[rare].sum())
    assert chi_square_excess(pooled_counts, pooled_probs) < 1


def test_a_wrong_rule_would_be_found():
    """The reference's fault: accept on equality with the argmax, else draw from p."""
    p = law(TARGET[START], SamplingParams(temperature=0.9))
    q_best = law(DRAFT[START], SamplingParams(temperature=0.9))[p.argmax()]
    bent = (1 - q_best) * p
    bent[p.argmax()] += q_best
    counts = np.random.default_rng(1).multinomial(4000, bent).astype(float)
    assert chi_square_excess(counts, p) > 1
