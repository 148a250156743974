"""The reference of drafting does what the runtime's rules do, and Saguaro what the paper says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.law.reference import Edits, LawParams, Sampling
from plugins.sample import kernel, sampled
from plugins.sample.sampled import Reshaping, saguaro
from plugins.verify.sampled import Status
from runtime.sampling.api import CoupledRule, RatioRule, Rule
from runtime.sampling.params import SamplingParams
from tests.helpers.drafting import (
    COUPLED,
    GREEDY,
    RATIO,
    RULES,
    cut_hangs_on_rounding,
    random_batch,
)
from tests.helpers.sampling_cases import as_float32

SEEDS = st.integers(0, 2**32)


def runtime_rule(rule: str, max_support: int) -> Rule:
    return CoupledRule() if rule == COUPLED else RatioRule(max_support)


@pytest.mark.parametrize("rule", RULES)
def test_the_reference_is_the_runtimes_rule_in_1000_batches(rule: str) -> None:
    """Tokens, candidates in order, and the draft's law. Greedy rows go by either rule."""
    num_rows = num_greedy = num_reduced = 0
    for index in range(1000):
        batch = random_batch(np.random.default_rng([index, 77 + RULES.index(rule)]), rule)
        for row in range(batch.num_rows):
            sequence, place = divmod(row, batch.logits.shape[1])
            sampling = batch.samplings[sequence]
            law = sampling.params
            logits = as_float32(batch.logits[sequence, place])[: batch.vocab_size]
            if not np.isfinite(logits.max()) or cut_hangs_on_rounding(logits, law):
                continue
            params = SamplingParams(law.temperature, law.top_k, law.top_p, sampling.seed, law.min_p)
            ids_map = None if batch.ids_map is None else batch.ids_map[: logits.size]
            exclude = None if batch.exclude is None else int(batch.exclude[sequence, place])
            position = int(batch.positions[sequence, place])
            support = batch.max_support or 128
            made = runtime_rule(rule if rule != GREEDY else (COUPLED, RATIO)[index % 2], support)
            common = (logits, Sampling(law, sampling.seed), position, 9, exclude, ids_map)
            if made.name == COUPLED:
                drawn = sampled.coupled(*common)
            else:
                drawn = sampled.ratio(*common, max_support=support)
            token, q = made.draft_token(logits, params, position, ids_map)
            candidates = made.bonus_candidates(logits, params, position, 9, exclude, ids_map)
            assert drawn.status == Status.DONE
            assert drawn.token == token
            assert drawn.candidates.tolist() == candidates.tolist()
            if q is not None:
                assert drawn.q_ids.tolist() == q.ids.tolist()
                np.testing.assert_allclose(drawn.q_probs, q.probs, rtol=1e-12)
            num_rows += 1
            num_greedy += params.is_greedy
            num_reduced += ids_map is not None
    assert num_rows > 2000
    assert min(num_greedy, num_reduced) > 100


@given(
    seed=SEEDS,
    size=st.integers(1, 20),
    top=st.integers(0, 25),
    scale=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_saguaro_is_the_papers_definition_on_a_law(seed: int, size: int, top: int, scale: float):
    """C exp(z) for the top F, exp(z) for the rest, normalised: arXiv 2603.03251, definition 14."""
    probs = np.sort(np.random.default_rng(seed).dirichlet(np.ones(size)))[::-1]
    found = saguaro(probs, top, scale)
    weights = [scale * p if i < top else p for i, p in enumerate(probs)]
    expected = probs if top >= size else np.array(weights) / sum(weights)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12)


@given(seed=SEEDS, top=st.integers(1, 6), scale=st.floats(0, 1))
def test_saguaro_raises_the_residual_on_the_candidates(seed: int, top: int, scale: float) -> None:
    """Theorem 15: the smaller C, the more of the residual's mass lies on what was prepared."""
    rng = np.random.default_rng(seed)
    q = np.sort(rng.dirichlet(np.ones(12)))[::-1]
    p = rng.dirichlet(np.ones(12))

    def share(law: np.ndarray) -> float:
        residual = np.maximum(p - law, 0)
        return float(residual[:top].sum() / residual.sum())

    assert share(saguaro(q, top, scale)) >= share(q) - 1e-12


def test_ids_that_saguaro_empties_leave_the_law() -> None:
    """The runtime's sparse law has positive probabilities only."""
    logits = np.array([3, 2, 1, 0], np.float32)
    drawn = sampled.ratio(
        logits, Sampling(LawParams(1.0)), 0, 2, max_support=3, reshaping=Reshaping(2, 0.0)
    )
    assert drawn.q_ids.tolist() == [2]
    assert drawn.q_probs.tolist() == [1.0]
    assert drawn.token == 2
    assert drawn.candidates.tolist() == [0, 1]


def test_saguaro_does_not_touch_a_greedy_row() -> None:
    """A point mass lies among any candidates."""
    logits = np.array([0, 2, 1], np.float32)
    drawn = sampled.ratio(logits, Sampling(), 0, 1, reshaping=Reshaping(1, 0.0))
    assert (drawn.token, drawn.q_ids.tolist(), drawn.q_probs.tolist()) == (1, [1], [1.0])


def test_edits_count_by_draft_ids() -> None:
    edits = Edits(*(np.array([1], each) for each in (np.int32, np.float32, np.int32, np.bool_)))
    edits.bias[0] = -np.inf
    drawn = sampled.coupled(
        np.array([1, 9, 2], np.float32), Sampling(edits=edits), 0, 3, None, np.array([5, 6, 7])
    )
    assert drawn.token == 7
    assert drawn.candidates.tolist() == [7, 5, 6]


@given(seed=SEEDS, rule=st.sampled_from([COUPLED, RATIO]))
def test_what_a_trial_asks_for_is_drafted(seed: int, rule: str) -> None:
    """Of the batches that kernels are timed with: shapes fit, and no row is damaged."""
    batch = kernel.random_batch(
        np.random.default_rng(seed),
        *(1, 2, 50),
        num_candidates=3,
        max_support=8 if rule == RATIO else 0,
        reduced_from=90,
    )
    expected = kernel.expected(batch)
    assert (expected["status"] == Status.DONE).all()
    assert set(expected["sample"]) <= set(batch.ids_map)
    assert (expected["candidates"] >= 0).all()
