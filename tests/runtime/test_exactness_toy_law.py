"""The toy pair emits by the target's law: in both rules, with all that drafts, in every mode."""

from __future__ import annotations

import itertools
from math import erfc

import numpy as np
import pytest

from runtime.device.host import HostDevice
from runtime.sampling.logits import law
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from tests.helpers.toy_pair import ToyPair, tables


def chi_square_tail(counts: np.ndarray, expected: np.ndarray) -> float:
    """P(chi-square >= observed), by the Wilson-Hilferty normal approximation; cells under 5
    expected are pooled."""
    counts, expected = np.ravel(counts), np.ravel(expected)
    small = expected < 5
    if small.any():
        counts = np.append(counts[~small], counts[small].sum())
        expected = np.append(expected[~small], expected[small].sum())
    statistic = float(((counts - expected) ** 2 / np.maximum(expected, 1e-9)).sum())
    degrees = len(counts) - 1
    spread = 2 / (9 * degrees)
    z = ((statistic / degrees) ** (1 / 3) - (1 - spread)) / spread**0.5
    return 0.5 * erfc(z / 2**0.5)


@pytest.mark.stat
@pytest.mark.parametrize(
    ("mode", "verify", "options"),
    [
        ("ssd", "coupled", {}),
        ("sd", "ratio", {}),
        ("ssd", "ratio", {"saguaro": 0.3}),
        ("ssd", "ratio", {"fallback": Fallback.LOOKUP}),
        ("sd", "ratio", {"drafter": Drafter.BOTH}),
        ("sd", "ratio", {"has_engine": False}),
        ("ssd", "ratio", {"drafter": Drafter.BOTH, "saguaro": 0.3}),
        ("ssd", "ratio", {"fallback": Fallback.JIT, "saguaro": 0.0, "max_batch": 4}),
    ],
)
def test_the_loops_law_is_the_targets_exact_joint_law_of_three_tokens(mode, verify, options):
    """Chi-square over all 64 triples, 4,000 draws; false alarm 1e-6 (seeds are fixed).

    Several rows at once: those that sit a round out are judged by laws of the branch steps.
    """
    vocab, num_draws, temperature = 4, 4000, 0.9
    device = HostDevice()
    pair = ToyPair(
        device,
        mode,
        table_seed=5,
        vocab=vocab,
        num_draft=2,
        num_branches=4,
        max_len=16,
        verify=verify,
        agreement=1.0,
        **options,
    )
    batch = options.get("max_batch", 1)
    counts = np.zeros((vocab,) * 3)
    for first in range(0, num_draws, batch):
        seeds = range(first, min(first + batch, num_draws))
        params = [SamplingParams(temperature=temperature, seed=seed) for seed in seeds]
        # Longer than looked at: drafts are cut where a text has to end.
        requests, _ = pair.generate([[1, 2]] * len(seeds), params, max_tokens=4)
        for request in requests:
            counts[tuple(request.generated[:3])] += 1
    device.close()
    table, _, _ = tables(5, vocab=vocab)
    p = law(table, SamplingParams(temperature=temperature))  # [V, V, V]
    expected = np.zeros_like(counts)
    for a, b, c in itertools.product(range(vocab), repeat=3):
        expected[a, b, c] = num_draws * p[1, 2, a] * p[2, a, b] * p[a, b, c]
    assert chi_square_tail(counts, expected) > 1e-6


def test_the_chi_square_would_notice_a_wrong_law():
    """Guards the test above: accepting the greedy choice and sampling the rest is biased."""
    random = np.random.default_rng(0)
    expected = 4000 * np.outer([0.5, 0.3, 0.2], [0.6, 0.4]).ravel()
    biased = 4000 * np.outer([0.56, 0.27, 0.17], [0.6, 0.4]).ravel()
    assert chi_square_tail(random.poisson(biased), expected) < 1e-6
    assert chi_square_tail(random.poisson(expected), expected) > 1e-6
