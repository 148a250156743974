"""The two rules behind one interface: reduced vocabularies, proposals, shared noise."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from runtime.sampling import coupled, ratio
from runtime.sampling.api import CoupledRule, RatioRule, Rule, rule
from runtime.sampling.noise import NoiseCache, Purpose, gumbel, uniform
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Lookup, Nothing

V, VD = 500, 120
BOTH = pytest.mark.parametrize("name", ["coupled", "ratio"])

params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 2**64 - 1),
)


def target_logits(seed: int, rows: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, V)).astype(np.float32) * 3


def reduced(seed: int) -> np.ndarray:
    """A draft vocabulary: target ids in no particular order."""
    return np.random.default_rng(seed).permutation(V)[:VD].astype(np.int32)


@BOTH
def test_rule_is_known_by_its_name(name):
    made: Rule = rule(name)
    assert made.name == name


def test_unknown_rule_is_refused_naming_the_choices():
    with pytest.raises(UsageError, match="'strict'; --verify takes coupled or ratio"):
        rule("strict")


@pytest.mark.parametrize("made", [CoupledRule, RatioRule])
def test_rules_take_the_arguments_of_the_protocol(made):
    for name, method in inspect.getmembers(Rule, inspect.isfunction):
        if not name.startswith("_"):
            assert inspect.signature(method) == inspect.signature(getattr(made, name))


@given(seed=st.integers(0, 999), params=params_strategy, accepted=st.integers(0, 4))
def test_coupled_tokens_do_not_depend_on_the_kind_of_proposal(seed, params, accepted):
    """ar, sd, ssd and lookup must emit the same tokens for a seed."""
    logits, made = target_logits(seed, 5), rule("coupled")
    own = [made.verify(logits[n:], Nothing(), params, 20 + n).bonus for n in range(5)]
    tokens = (*own[:accepted], *((token + 1) % V for token in own[accepted:4]))
    for proposal in (Drafted(tokens), Lookup(tokens)):
        verdict = made.verify(logits, proposal, params, 20)
        assert [*tokens[: verdict.accepted], verdict.bonus] == own[: accepted + 1]


@given(seed=st.integers(0, 999), params=params_strategy)
def test_a_reduced_draft_vocabulary_uses_the_noise_of_its_target_ids(seed, params):
    """A draft that equals the target on its own ids must choose the target's token."""
    ids_map, row = reduced(seed), target_logits(seed, 1)
    outside = np.delete(np.arange(V), ids_map)
    row[0, outside] = -np.inf
    made = rule("coupled")
    token, law = made.draft_token(row[0, ids_map], params, 42, ids_map)
    assert law is None
    assert token == made.verify(row, Nothing(), params, 42).bonus
    assert made.bonus_candidates(row[0, ids_map], params, 42, 4, None, ids_map)[0] == token


@given(seed=st.integers(0, 999), params=params_strategy)
def test_ratio_draft_is_drawn_from_the_law_it_reports(seed, params):
    ids_map, row = reduced(seed), target_logits(seed, 1)[0, :VD]
    token, q = rule("ratio").draft_token(row, params, 7, ids_map)
    assert q is not None
    assert token == ratio.draw(q, uniform(params.seed, 7, Purpose.DRAFT))
    assert q.ids.tolist() == ratio.draft_law(row, params, ids_map).ids.tolist()
    assert set(q.ids.tolist()) <= set(ids_map.tolist())


@BOTH
@given(
    seed=st.integers(0, 99),
    params=params_strategy,
    num=st.integers(0, 30),
    kind=st.sampled_from(["none", "drafted", "unmapped"]),
)
def test_bonus_candidates_are_target_ids_without_the_excluded_one(name, seed, params, num, kind):
    ids_map, row = reduced(seed), target_logits(seed, 1)[0, :VD]
    made = rule(name)
    ranking = made.bonus_candidates(row, params, 3, VD, None, ids_map).tolist()
    assert sorted(ranking) == sorted(ids_map.tolist())
    unmapped = int(np.setdiff1d(np.arange(V), ids_map)[0])
    exclude = {"none": None, "drafted": ranking[min(2, num)], "unmapped": unmapped}[kind]
    found = made.bonus_candidates(row, params, 3, num, exclude, ids_map)
    assert found.dtype == np.int32
    assert found.tolist() == [token for token in ranking if token != exclude][:num]


def test_candidates_without_a_map_are_the_ids_themselves():
    row = target_logits(0, 1)[0]
    params = SamplingParams(temperature=1, seed=2)
    for made, noise in ((rule("coupled"), gumbel(2, 5, V)), (rule("ratio"), None)):
        expected = coupled.candidates(row, params, noise, 6, 17)
        assert made.bonus_candidates(row, params, 5, 6, 17).tolist() == expected.tolist()


def test_both_sides_of_the_coupled_rule_share_one_cache(monkeypatch):
    """Noise is the dearest part of sampling; the target must find what the draft computed."""
    calls = []

    def counting(seed: int, position: int, vocab_size: int) -> np.ndarray:
        calls.append(position)
        return gumbel(seed, position, vocab_size)

    monkeypatch.setattr("runtime.sampling.noise.gumbel", counting)
    made, params, ids_map = rule("coupled", NoiseCache(V)), SamplingParams(1.0), reduced(1)
    logits = target_logits(1, 4)
    tokens = tuple(
        made.draft_token(row[:VD], params, n, ids_map)[0] for n, row in enumerate(logits)
    )
    made.bonus_candidates(logits[0, :VD], params, 0, 4, tokens[0], ids_map)
    made.verify(logits, Drafted(tokens[:3]), params, 0)
    assert calls == [0, 1, 2, 3]


@BOTH
def test_sampling_is_honoured_and_reproducible(name):
    """S4, S12, S14: sampled requests vary with the seed, repeat with it, and never turn greedy."""
    logits, ids = target_logits(3, 1), set()
    logits /= 4
    for seed in range(50):
        params = SamplingParams(temperature=1.0, seed=seed)
        bonus = {rule(name).verify(logits, Nothing(), params, 9).bonus for _ in range(2)}
        assert len(bonus) == 1
        ids |= bonus
    assert len(ids) > 10


@BOTH
def test_inputs_are_left_alone(name):
    logits = target_logits(4, 3)
    before = logits.copy()
    params = SamplingParams(temperature=1.0, top_k=9, top_p=0.9, min_p=0.01)
    made = rule(name)
    token, law = made.draft_token(logits[0], params, 0)
    made.verify(logits, Drafted((token,), None if law is None else (law,)), params, 0)
    made.bonus_candidates(logits[0], params, 0, 8, token)
    np.testing.assert_array_equal(logits, before)


@BOTH
def test_banned_tokens_are_neither_emitted_nor_drafted_nor_expected(name):
    """Both sides leave them out where they are banned, and only there."""
    logits, ids_map = target_logits(5, 6), reduced(5)
    top = int(logits.mean(axis=0).argmax())
    logits[:, top] = 40  # all but certain wherever it is allowed
    made = rule(name)
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature, seed=1, banned_ids=(top,), banned_before=12)
        bonus = [made.verify(logits[n:], Nothing(), params, 10 + n).bonus for n in range(4)]
        assert [token == top for token in bonus] == [False, False, True, True]
        verdict = made.verify(logits, Lookup((*bonus[:2], top, top)), params, 10)
        if name == "coupled":
            assert verdict.accepted == 4
        assert made.verify(logits, Lookup((top,)), params, 10).accepted == 0
        inside = int(ids_map[0])
        draft = logits[0, ids_map].copy()
        draft[0] = 40
        banned = SamplingParams(temperature, seed=1, banned_ids=(inside,), banned_before=12)
        for position, is_banned in ((11, True), (12, False)):
            token, _ = made.draft_token(draft, banned, position, ids_map)
            guesses = made.bonus_candidates(draft, banned, position, 5, None, ids_map).tolist()
            assert (token != inside) == is_banned
            assert (inside not in guesses) == is_banned


def test_a_banned_token_moves_only_the_mass_it_had():
    """min_tokens must renormalise what is left, not fall to the next token."""
    logits = np.log([[0.5, 0.3, 0.2]]).astype(np.float32)
    counts = np.zeros(3)
    for seed in range(2000):
        params = SamplingParams(1.0, seed=seed, banned_ids=(0,), banned_before=1)
        counts[rule("ratio").verify(logits, Nothing(), params, 0).bonus] += 1
    assert counts[0] == 0
    # 5 standard deviations of a share of 0.6: a false alarm in 1.7 million runs.
    assert abs(counts[1] / 2000 - 0.6) < 5 * (0.24 / 2000) ** 0.5


@given(seed=st.integers(0, 999), temperature=st.sampled_from([0.3, 1.0]), seeds=st.integers(0, 99))
def test_a_draft_like_its_target_is_always_accepted(seed, temperature, seeds):
    """S16, S17: equal laws under the same cuts accept everything; drafting outside the request's
    top_k, or from other noise, would not."""
    logits = target_logits(seed, 3)
    for cut in ({}, {"top_k": 1}, {"top_k": 5, "top_p": 0.7}):
        params = SamplingParams(temperature, seed=seeds, **cut)
        made = rule("coupled")
        tokens = tuple(made.draft_token(logits[n], params, 7 + n)[0] for n in range(2))
        assert made.verify(logits, Drafted(tokens), params, 7).accepted == 2


@pytest.mark.parametrize("scale", [-0.1, 1.1, float("nan")])
def test_a_saguaro_scale_that_cannot_be_is_refused(scale):
    with pytest.raises(UsageError, match="from 0 to 1"):
        rule("ratio", saguaro=scale)


def test_saguaro_without_a_draft_law_is_refused():
    """The coupled rule would ignore it in silence."""
    with pytest.raises(UsageError, match="--verify ratio"):
        rule("coupled", saguaro=0.5)
    assert rule("coupled", saguaro=1.0).name == "coupled"
