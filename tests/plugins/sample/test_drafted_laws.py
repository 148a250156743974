"""Drafted tokens follow the law they report, and with verification behind them the target's.

Each limit would be exceeded by right code with probability 1e-6; seeds are fixed, so nothing
flickers. The last test shows that the faults to fear are found at these sizes.
"""

from __future__ import annotations

import numpy as np
import pytest

from plugins.law.reference import LawParams, Sampling, law
from plugins.noise.reference import Purpose, uniform
from plugins.sample import kernel, sampled
from plugins.sample.args import Batch
from plugins.sample.sampled import Reshaping, saguaro
from plugins.verify import args as verify_args
from plugins.verify import kernel as verify_kernel
from plugins.verify.sampled import Outcome, verify_ratio
from tests.helpers.chi_square import excess
from tests.helpers.drafting import launch
from tests.helpers.sampling_cases import float32
from tests.helpers.sampling_kernels import Block, Grid, judge

pytestmark = pytest.mark.stat

V, NUM_DRAWS = 8, 4000
rng = np.random.default_rng(2026)
TARGET = (rng.standard_normal(V) * 1.2).astype(np.float32)
DRAFT = (TARGET + rng.standard_normal(V) * 0.8).astype(np.float32)
PARAMS = LawParams(temperature=float32(0.9))
RESHAPINGS = [Reshaping(), Reshaping(3, 0.5), Reshaping(2, float32(0.05)), Reshaping(3, 0.0)]
SHAPED = pytest.mark.parametrize("reshaping", RESHAPINGS, ids=str)


@pytest.fixture(scope="module")
def drafting(load_host):
    return load_host(kernel.KERNEL.source, kernel.KERNEL.args)


@pytest.fixture(scope="module")
def verification(load_host):
    return load_host(verify_kernel.KERNEL.source, verify_kernel.KERNEL.args)


def samplings() -> list[Sampling]:
    return [Sampling(PARAMS, seed, 40) for seed in range(NUM_DRAWS)]


def drafts(drafting, reshaping: Reshaping, max_support: int = 128) -> dict[str, np.ndarray]:
    """One drafted token for each seed, at position 40."""
    batch = Batch(
        logits=np.broadcast_to(DRAFT, (NUM_DRAWS, 1, V)).copy(),
        samplings=samplings(),
        positions=np.full((NUM_DRAWS, 1), 40),
        num_candidates=3,
        max_support=max_support,
        reshapings=[reshaping] * NUM_DRAWS,
    )
    return launch(drafting, batch)


def dense(ids: np.ndarray, probs: np.ndarray) -> np.ndarray:
    """[V] of a sparse law."""
    q = np.zeros(V)
    q[ids[ids >= 0]] = probs[ids >= 0]
    return q


def target_law() -> np.ndarray:
    return law(TARGET, PARAMS)


def emitted(outcome: Outcome, drafted: np.ndarray) -> np.ndarray:
    """Counts of the first token that each verification lets out, [V]."""
    first = np.where(outcome.accepted == 1, drafted, outcome.next)
    return np.bincount(first, minlength=V).astype(float)


@SHAPED
@pytest.mark.parametrize("max_support", [4, 128])
def test_the_kernel_draws_from_the_law_it_reports(drafting, reshaping, max_support: int) -> None:
    found = drafts(drafting, reshaping, max_support)
    q = dense(found["q_ids"][0], found["q_probs"][0])
    counts = np.bincount(found["sample"], minlength=V).astype(float)
    assert excess(counts, q) < 1


def test_the_kernels_coupled_draw_is_from_the_softmax(drafting) -> None:
    found = drafts(drafting, Reshaping(), max_support=0)
    counts = np.bincount(found["sample"], minlength=V).astype(float)
    assert excess(counts, law(DRAFT, PARAMS)) < 1


@SHAPED
def test_the_reference_keeps_the_targets_law(reshaping) -> None:
    """Draft, verify, emit: whatever Saguaro makes of the draft, the target's law comes out."""
    drawn = [
        sampled.ratio(DRAFT, sampling, 40, 3, reshaping=reshaping, max_support=V)
        for sampling in samplings()
    ]
    drafted = np.array([each.token for each in drawn])
    padded = [np.pad(each.q_ids, (0, V - each.q_ids.size), constant_values=-1) for each in drawn]
    probs = [np.pad(each.q_probs, (0, V - each.q_probs.size)) for each in drawn]
    outcome = verify_ratio(
        np.broadcast_to(TARGET, (NUM_DRAWS, 2, V)),
        drafted[:, None],
        np.ones(NUM_DRAWS, np.int64),
        np.array(padded)[:, None],
        np.array(probs)[:, None],
        samplings(),
    )
    assert excess(emitted(outcome, drafted), target_law()) < 1


@SHAPED
def test_the_kernels_keep_the_targets_law(drafting, verification, reshaping) -> None:
    """The same through both kernels, with the draft's law handed on in their memory."""
    found = drafts(drafting, reshaping, max_support=V)
    outcome = judged(verification, found)
    assert (outcome.status == 0).all()
    assert excess(emitted(outcome, found["sample"]), target_law()) < 1
    if reshaping.top == 0:
        assert 0.5 < outcome.accepted.mean() < 1


def judged(verification, found: dict[str, np.ndarray]) -> Outcome:
    block = Block(
        np.broadcast_to(TARGET, (NUM_DRAWS, 2, V)).copy(),
        samplings(),
        drafts=found["sample"][:, None].copy(),
        q_ids=found["q_ids"][:, None].copy(),
        q_probs=found["q_probs"][:, None].copy(),
    )
    return judge(verification, verify_args.RATIO, block, Grid())


def test_saguaro_makes_the_prepared_tokens_follow_a_rejection(drafting, verification) -> None:
    """What it is for: where the draft is rejected, the bonus token is more often a candidate."""
    hits = []
    for reshaping in (Reshaping(), Reshaping(3, 0.0)):
        found = drafts(drafting, reshaping, max_support=V)
        outcome = judged(verification, found)
        rejected = outcome.accepted == 0
        prepared = (found["candidates"] == outcome.next[:, None]).any(1)
        hits.append(prepared[rejected].mean())
    assert hits[1] > hits[0] + 0.1


def test_the_faults_to_fear_would_be_found() -> None:
    """The unshaped law handed on for a shaped draw; and a draw that shares its uniform."""
    q = law(DRAFT, PARAMS)
    order = np.argsort(-q)
    shaped = np.zeros(V)
    shaped[order] = saguaro(q[order], 3, 0.5)
    p = target_law()
    accepted = shaped * np.minimum(1, p / q)
    rest = np.maximum(p - q, 0)
    bent = accepted + (1 - accepted.sum()) * rest / rest.sum()
    counts = np.random.default_rng(1).multinomial(NUM_DRAWS, bent).astype(float)
    assert excess(counts, p) > 1

    uniforms = [uniform(seed, 40, Purpose.ACCEPT) for seed in range(NUM_DRAWS)]
    shared = order[q[order].cumsum().searchsorted(uniforms, side="right").clip(max=V - 1)]
    stays = np.array(uniforms) * q[shared] < p[shared]
    counts = np.bincount(shared[stays], minlength=V).astype(float)
    residual = np.random.default_rng(2).multinomial(NUM_DRAWS - stays.sum(), rest / rest.sum())
    assert excess(counts + residual, p) > 1
