"""How often rows hit and wait, against chains that are run instead of solved."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.cost.shares import MANY, WaitingShares, hit_share, waiting_shares


@given(st.floats(0.02, 0.98), st.floats(0.02, 0.98))
def test_the_share_of_hits_is_that_of_the_two_state_chain(after_hit, after_miss) -> None:
    chain = np.array([[after_hit, 1 - after_hit], [after_miss, 1 - after_miss]])
    share = np.linalg.matrix_power(chain, 4000)[0, 0]
    assert hit_share(after_hit, after_miss) == pytest.approx(share, rel=1e-6)


def test_perfect_hits_and_perfect_misses() -> None:
    assert hit_share(1.0, 0.0) == 0.0  # a first hit never comes
    assert hit_share(1.0, 0.5) == 1.0
    assert waiting_shares(0.0, 0.0, 1) == (0.0, 1.0, 0.0, 0.0)
    for batch in (2, MANY, MANY + 1):
        assert waiting_shares(1.0, 1.0, batch) == pytest.approx((1, 0, 0, 0), abs=1e-5)
    for batch in (2, 3):
        # All are drafted at once, all miss, and so on: nobody ever sits a round out.
        assert waiting_shares(0.0, 0.0, batch) == pytest.approx((0, 1, 0, 0), abs=1e-5)


def run_batch(after_hit: float, after_miss: float, batch: int, rounds: int) -> WaitingShares:
    random = np.random.default_rng(7)
    held = np.ones(batch, np.int64)  # 0: a hit's drafts, 1: at once, 2: drafted aside, 3: waits
    counts = np.zeros(4)
    for draws in random.random((rounds, batch)):
        counts += np.bincount(held, minlength=4)
        waits = held == 3
        hits = ~waits & (draws < np.where(held == 0, after_hit, after_miss))
        misses = ~waits & ~hits
        held = np.where(hits, 0, np.where(waits, 2, 1 if misses.all() else 3))
    return WaitingShares(*(counts / rounds / batch).tolist())


@pytest.mark.parametrize("batch", [1, 2, 3, MANY, MANY + 1, 16])
@pytest.mark.parametrize(("after_hit", "after_miss"), [(0.88, 0.8), (0.6, 0.5), (0.5, 0.1)])
def test_waiting_rows_are_those_of_the_batch_played_through(
    after_hit: float, after_miss: float, batch: int
) -> None:
    expected = run_batch(after_hit, after_miss, batch, 12_000)
    found = waiting_shares(after_hit, after_miss, batch)
    assert found == pytest.approx(expected, abs=0.012)
    assert sum(found) == pytest.approx(1)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 12))
def test_shares_are_shares(after_hit, after_miss, batch) -> None:
    shares = waiting_shares(after_hit, after_miss, batch)
    assert min(shares) >= 0
    assert max(shares) <= 1 + 1e-6
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    # Every round that was sat out is followed by its drafts.
    assert shares.waited == pytest.approx(shares.sat_out, abs=1e-5)
