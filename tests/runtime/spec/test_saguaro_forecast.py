"""The forecast of Saguaro's C against the rule itself, run on a synthetic pair."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.sampling import ratio
from runtime.sampling.api import rule
from runtime.sampling.logits import law
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Nothing, SparseLaw
from runtime.spec.cost import ByTokens, Grid, PairTimes
from runtime.spec.fallback import Fallback
from runtime.spec.saguaro import SCALES, SLACK, PairLaws, best_scale, forecast, rate, shaped

V, K, W = 24, 2, 6
SAMPLED = SamplingParams(temperature=1.0)
VERIFY = ByTokens((1, 1 + K), (0.015, 0.016))
TIMES = PairTimes.apart(VERIFY, ByTokens((1,), (0.003,)))


def tables(noise: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
    """Logits [V, V] after each last token, of the target and of its draft."""
    rng = np.random.default_rng(7)
    target = (rng.standard_normal((V, V)) * 1.2).astype(np.float32)
    return target, (target + noise * rng.standard_normal((V, V))).astype(np.float32)


TARGET, DRAFT = tables()


def laws_along_a_text(num_places: int) -> PairLaws:
    made, token, text = rule("ratio"), 0, [0]
    for position in range(num_places):
        params = SamplingParams(temperature=1.0, seed=99)
        token = made.verify(TARGET[[token]], Nothing(), params, position).bonus
        text.append(token)
    before, tokens = np.array(text[:-1]), np.array(text[1:])
    laws = [ratio.draft_law(DRAFT[token], SAMPLED) for token in before]
    ids = np.stack([q.ids for q in laws])
    target = law(TARGET[before], SAMPLED)
    places = np.arange(num_places)
    return PairLaws(
        draft=np.stack([q.probs for q in laws]),
        target=target[places[:, None], ids],
        token_target=target[places, tokens],
        token_rank=np.argmax(ids == tokens[:, None], axis=1),
        left=num_places - places,
    )


LAWS = laws_along_a_text(6000)


def played(scale: float, counts: np.ndarray, num_rounds: int) -> tuple[np.ndarray, float]:
    """Accepted counts and share of hits of rounds of the rule itself, one after the other."""
    made = rule("ratio", saguaro=scale)
    accepted, num_hits, last, position = np.zeros(K + 1), 0, 0, 0
    params = SamplingParams(temperature=1.0, seed=5)
    for _ in range(num_rounds):
        drafts: list[int] = []
        laws = []
        contexts = [last]
        for depth in range(K):
            token, q = made.draft_token(
                DRAFT[contexts[-1]], params, position + depth, num_prepared=int(counts[depth])
            )
            assert q is not None
            drafts.append(token)
            laws.append(q)
            contexts.append(token)
        verdict = made.verify(
            TARGET[contexts], Drafted(tuple(drafts), tuple(laws)), params, position
        )
        k = verdict.accepted
        prepared = made.bonus_candidates(
            DRAFT[contexts[k]],
            params,
            position + k,
            int(counts[k]),
            exclude=drafts[k] if k < K else None,
        )
        accepted[k] += 1
        num_hits += verdict.bonus in prepared
        last, position = verdict.bonus, position + k + 1
    return accepted / num_rounds, num_hits / num_rounds


@pytest.mark.stat
@pytest.mark.parametrize("scale", [1.0, 0.2, 0.0])
def test_the_forecast_is_what_the_rule_does(scale: float) -> None:
    """Within 5 standard deviations of a share of a half in 3000 rounds, and in the 6000 places
    that the forecast is made from: a false alarm in a million."""
    found = forecast(LAWS, scale, K, W)
    accepted, hit_rate = played(scale, found.counts, 3000)
    allowed = 5 * (0.25 / 3000 + 0.25 / 6000) ** 0.5
    np.testing.assert_allclose(found.accepted, accepted, atol=allowed)
    assert abs(found.hit_rate - hit_rate) < allowed


def test_a_smaller_scale_hits_more_all_the_way_and_accepts_less_in_the_end() -> None:
    """Theorem 15, without a draw: the same texts, each C. A draft that is too sure of itself is
    accepted a little more often at first."""
    found = [forecast(LAWS, scale, K, W) for scale in SCALES]
    assert all(before.hit_rate <= after.hit_rate for before, after in pairwise(found))
    assert found[-1].hit_rate > 2 * found[0].hit_rate
    assert found[-1].accepted[0] > 1.2 * found[0].accepted[0]
    assert {each.hit_rate_none for each in found} == {found[0].hit_rate_none}, "no draft, no scale"


def test_the_fan_out_settles_within_the_width() -> None:
    for scale in SCALES:
        found = forecast(LAWS, scale, K, W)
        assert found.counts.sum() <= W
        assert found.accepted.sum() == pytest.approx(1)
        assert 0 < found.hit_rate < 1


@given(
    probs=st.lists(st.just(0.0) | st.floats(1e-9, 1), min_size=1, max_size=8),
    num_prepared=st.integers(0, 9),
    scale=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_laws_are_shaped_as_the_rule_shapes_them(probs, num_prepared, scale) -> None:
    drawn = -np.sort(-np.array([1.0, *probs]))
    size = int(np.count_nonzero(drawn > 0))
    row = drawn / drawn.sum()
    found = shaped(row[None], num_prepared, scale)[0]
    q = SparseLaw(np.arange(size, dtype=np.int32), row[:size])
    expected = np.zeros(row.size)
    if num_prepared and scale < 1:
        made = ratio.saguaro(q, num_prepared, scale)
        expected[made.ids] = made.probs
    else:
        expected[:size] = q.probs
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# --- the choice ---


def test_hits_are_bought_where_waiting_for_drafts_is_dear() -> None:
    """A miss that waits 60 ms for its drafts is worth many accepted tokens; one that waits for
    nothing is worth none."""
    dear = PairTimes.apart(VERIFY, Grid((1,), (1, W), ((0.030, 0.001),)))
    free = PairTimes.apart(VERIFY, ByTokens((1,), (1e-6,)))
    chosen = [best_scale(LAWS, times, K, W, Fallback.JIT) for times in (dear, free)]
    assert chosen[0] < chosen[1]


@pytest.mark.parametrize("fallback", Fallback)
def test_no_other_scale_is_predicted_to_be_clearly_faster(fallback: Fallback) -> None:
    rates = {scale: rate(TIMES, forecast(LAWS, scale, K, W), W, fallback) for scale in SCALES}
    chosen = best_scale(LAWS, TIMES, K, W, fallback)
    assert rates[chosen] >= (1 - SLACK) * max(rates.values())
    larger = [value for scale, value in rates.items() if scale > chosen]
    assert all(value < (1 - SLACK) * max(rates.values()) for value in larger)


def test_equal_laws_are_left_alone() -> None:
    """Of scales that promise the same, the one that changes nothing: a draft law of one token."""
    one = PairLaws(
        draft=np.ones((9, 1)),
        target=np.full((9, 1), 0.5),
        token_target=np.full(9, 0.5),
        token_rank=np.zeros(9, int),
        left=np.arange(9, 0, -1),
    )
    assert best_scale(one, TIMES, K, W, Fallback.ZERO) == 1


def test_texts_shorter_than_a_round_are_refused() -> None:
    short = PairLaws(LAWS.draft, LAWS.target, LAWS.token_target, LAWS.token_rank, LAWS.left * 0 + K)
    with pytest.raises(ValueError, match="no text has 3 places"):
        forecast(short, 0.5, K, W)
