"""The coupled rule: the target's own tokens, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import BackendError, UsageError
from runtime.sampling.coupled import candidates, choose, verify
from runtime.sampling.logits import process, survivors
from runtime.sampling.noise import gumbel
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Verdict

params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-9, 0.5, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 1000]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    seed=st.integers(0, 2**64 - 1),
    min_p=st.sampled_from([0.0, 0.2]),
)


def block(seed: int, rows: int, vocab: int) -> np.ndarray:
    """Logits [R, V], rounded so that ties occur, some masked."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal((rows, vocab)) * 2).astype(np.float32)
    masked = rng.random(logits.shape) < 0.2
    masked[:, 0] = False
    logits[masked] = -np.inf
    return logits


def plain_decoding(logits: np.ndarray, params: SamplingParams, first: int) -> list[int]:
    """The definition, token by token, with dense arrays and no shortcut."""
    tokens = []
    for row, values in enumerate(process(logits, params)):
        scores = values.copy()
        if params.temperature:
            scores += np.float32(params.temperature) * gumbel(params.seed, first + row, values.size)
        tokens.append(int(np.flatnonzero(scores == scores.max())[0]))
    return tokens


def noise_for(params: SamplingParams, vocab: int):
    return lambda position: gumbel(params.seed, position, vocab)


@given(
    data=st.data(),
    params=params_strategy,
    num_drafts=st.integers(0, 6),
    vocab=st.integers(1, 80),
    first=st.integers(0, 1000),
)
def test_a_block_yields_exactly_the_tokens_of_plain_decoding(
    data, params, num_drafts, vocab, first
):
    logits = block(data.draw(st.integers(0, 999)), num_drafts + 1, vocab)
    own = plain_decoding(logits, params, first)
    drafts = [
        token if data.draw(st.booleans()) else data.draw(st.integers(-1, vocab))
        for token in own[:num_drafts]
    ]
    verdict = verify(logits, drafts, params, noise_for(params, vocab), first)
    emitted = [*drafts[: verdict.accepted], verdict.bonus]
    assert emitted == own[: len(emitted)]
    assert verdict.accepted == num_drafts or drafts[verdict.accepted] != own[verdict.accepted]


def test_every_accepted_count_is_reached():
    params = SamplingParams(temperature=1.0, seed=4)
    logits = block(1, 5, 50)
    own = plain_decoding(logits, params, 10)
    for accepted in range(5):
        drafts = own[:4]
        if accepted < 4:
            drafts[accepted] = (drafts[accepted] + 1) % 50
        verdict = verify(logits, drafts, params, noise_for(params, 50), 10)
        assert verdict == Verdict(accepted, own[accepted])


def test_spare_rows_of_logits_are_not_read():
    """A batch pads rows; what lies in the padding must not decide anything."""
    logits = block(2, 4, 30)
    logits[1:] = np.nan
    params = SamplingParams(temperature=0.8, seed=1)
    verdict = verify(logits, [], params, noise_for(params, 30), 5)
    assert verdict == Verdict(0, plain_decoding(logits[:1], params, 5)[0])


def test_rows_and_noise_after_a_rejection_are_not_read():
    logits = block(2, 3, 30)
    logits[1:] = np.nan
    params = SamplingParams(temperature=0.8, seed=1)
    asked = []

    def noise_at(position: int) -> np.ndarray:
        asked.append(position)
        return gumbel(params.seed, position, 30)

    assert verify(logits, [-1, -1], params, noise_at, 7).accepted == 0
    assert asked == [7]


def test_too_few_rows_are_refused():
    with pytest.raises(UsageError, match="2 drafted tokens need 3 rows of logits, found 2"):
        verify(block(0, 2, 5), [0, 0], SamplingParams(), noise_for(SamplingParams(), 5), 0)


# --- temperature and seed ---


def test_tiny_temperatures_choose_like_greedy():
    """G6: temperature exactly 0 and nearly 0 must agree, and nothing may overflow."""
    logits = np.random.default_rng(5).standard_normal((6, 400)).astype(np.float32) * 5
    greedy = plain_decoding(logits, SamplingParams(), 0)
    for temperature in (0, 5e-324, 1e-50, 1e-9, 1e-5):
        params = SamplingParams(temperature=temperature, seed=3)
        assert [choose(row, params, gumbel(3, n, 400)) for n, row in enumerate(logits)] == greedy


def test_greedy_ignores_seed_and_cuts_and_needs_no_noise():
    """S14: at temperature 0 the seed has no effect; at 1 it must have one."""
    logits = np.random.default_rng(6).standard_normal(100).astype(np.float32)
    greedy = {
        choose(logits, SamplingParams(seed=seed, top_k=2, top_p=0.1, min_p=1), None)
        for seed in range(10)
    }
    assert greedy == {int(logits.argmax())}
    sampled = {
        choose(logits, SamplingParams(temperature=1, seed=seed), gumbel(seed, 0, 100))
        for seed in range(10)
    }
    assert len(sampled) > 1


def test_greedy_verification_never_asks_for_noise():
    def noise_at(position: int) -> np.ndarray:
        raise AssertionError(position)

    logits = block(3, 3, 20)
    own = plain_decoding(logits, SamplingParams(), 0)
    assert verify(logits, own[:2], SamplingParams(), noise_at, 0) == Verdict(2, own[2])


def test_sampling_without_noise_is_refused_not_greedy():
    """S5: a path that cannot sample must say so, not decode greedily in silence."""
    with pytest.raises(UsageError, match="needs noise"):
        choose(np.zeros(4, np.float32), SamplingParams(temperature=1), None)


def test_huge_temperature_is_noise_alone():
    row, noise = np.array([0, 9, 0, 4], np.float32), gumbel(1, 2, 4)
    params = SamplingParams(temperature=1e308, seed=1)
    assert choose(row, params, noise) == int(noise.argmax())


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1e-9, top_k=3)])
def test_ties_go_to_the_lowest_id(params):
    row = np.array([1, 7, 7, 7], np.float32)
    assert choose(row, params, np.zeros(4, np.float32)) == 1


@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.4}, {"min_p": 0.9}], ids=str)
def test_no_noise_lifts_a_cut_token(cut):
    """S3, S7: a token outside the cut law must never be emitted at any row."""
    logits = np.log(np.array([[0.5, 0.4, 0.1]] * 4)).astype(np.float32)
    for seed in range(50):
        params = SamplingParams(temperature=1.0, seed=seed, **cut)
        assert verify(logits, [0, 0, 0], params, noise_for(params, 3), 0) == Verdict(3, 0)


@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.9}, {"temperature": 0.9, "top_k": 3}], ids=str
)
def test_damaged_logits_are_refused_not_sampled(damage, params):
    row = np.full(200, -np.inf if damage == -np.inf else 0.0, np.float32)
    row[150] = damage
    with pytest.raises(BackendError, match="largest logit of a row"):
        choose(row, SamplingParams(**params), gumbel(0, 0, 200))


def test_noise_longer_than_the_vocabulary_is_cut_to_it():
    row = np.random.default_rng(7).standard_normal(50).astype(np.float32)
    for cut in ({}, {"top_k": 5}):
        params = SamplingParams(temperature=1, **cut)
        assert choose(row, params, gumbel(0, 1, 64)) == choose(row, params, gumbel(0, 1, 50))


# --- candidates ---


def by_definition(row, params, noise, num, exclude):
    """Rank by (cut or not, score, id)."""
    kept = survivors(row, params)
    kept = np.arange(row.size) if kept is None else kept
    perturbed = row.astype(np.float32)
    if noise is not None and params.temperature:
        perturbed = perturbed + np.float32(params.temperature) * noise
    inside = sorted(kept.tolist(), key=lambda i: (-perturbed[i], i))
    outside = sorted(set(range(row.size)) - set(inside), key=lambda i: (-row[i], i))
    return [i for i in inside + outside if i != exclude][:num]


@given(
    seed=st.integers(0, 999),
    vocab=st.integers(1, 300),
    params=params_strategy,
    num=st.integers(0, 40),
    excluded_rank=st.integers(-1, 5),
    with_noise=st.booleans(),
)
def test_candidates_rank_by_perturbed_logits_then_the_cut_ones(
    seed, vocab, params, num, excluded_rank, with_noise
):
    row = block(seed, 1, vocab)[0]
    noise = gumbel(params.seed, 3, vocab) if with_noise else None
    ranking = by_definition(row, params, noise, vocab, None)
    exclude = None if excluded_rank < 0 else ranking[min(excluded_rank, vocab - 1)]
    found = candidates(row, params, noise, num, exclude)
    assert found.dtype == np.int32
    assert found.tolist() == by_definition(row, params, noise, num, exclude)


@given(seed=st.integers(0, 999), params=params_strategy)
def test_a_perfect_draft_names_the_targets_token_first(seed, params):
    row, noise = block(seed, 1, 100)[0], gumbel(params.seed, 8, 100)
    assert candidates(row, params, noise, 4)[0] == choose(row, params, noise)
