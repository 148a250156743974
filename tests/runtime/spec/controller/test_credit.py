"""The account that speculation lives on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.controller.credit import NUM_ROUNDS, SHARE, START_ROUNDS, Credit


def account(loss_s: float = 1.0) -> Credit:
    credit = Credit()
    credit.value(loss_s)
    return credit


def test_a_new_account_covers_one_trial() -> None:
    credit = account(2.0)
    assert credit.covers(START_ROUNDS * 2.0)
    assert not credit.covers(START_ROUNDS * 2.0 + 0.01)


def test_it_is_opened_once() -> None:
    """A new value of a bad round would refill an account that has been emptied."""
    credit = account()
    credit.settle(plain_s=0.0, seconds=START_ROUNDS)
    credit.value(3.0)
    assert credit.balance_s == pytest.approx(0.0)


def test_plain_rounds_fill_it_up_to_the_limit() -> None:
    credit = account()
    credit.settle(plain_s=1.0, seconds=1.0)
    assert credit.balance_s == pytest.approx(START_ROUNDS + SHARE)
    for _ in range(2000):
        credit.settle(plain_s=1.0, seconds=1.0)
    assert credit.balance_s == NUM_ROUNDS


def test_a_lower_limit_takes_what_is_above_it() -> None:
    credit = account()
    for _ in range(1000):
        credit.settle(plain_s=1.0, seconds=1.0)
    credit.value(0.25)
    assert credit.balance_s == NUM_ROUNDS * 0.25


def test_what_a_draft_has_to_read_can_be_saved_for() -> None:
    """The limit held less than that, so a trial behind a long prompt never began."""
    credit = account()
    for saving_s, most in ((5.0, NUM_ROUNDS + 5.0), (0.0, NUM_ROUNDS)):
        credit.value(1.0, saving_s)
        for _ in range(2000):
            credit.settle(plain_s=1.0, seconds=1.0)
        assert credit.balance_s == most


def test_reading_that_is_lent_is_a_debt_that_shares_pay_first() -> None:
    """It was taken from the balance: a trial behind a long text was over before it had begun."""
    credit = account()
    credit.lend(4.0)
    credit.settle(plain_s=1.0, seconds=6.0, is_reading=True)
    assert credit.debt_s == 4.0
    assert credit.balance_s == pytest.approx(START_ROUNDS - 1.0 + SHARE)
    for _ in range(200):
        credit.settle(plain_s=1.0, seconds=1.0)
    assert credit.debt_s == pytest.approx(4.0 - 200 * SHARE)
    assert credit.balance_s == pytest.approx(START_ROUNDS - 1.0 + SHARE)
    for _ in range(300):
        credit.settle(plain_s=1.0, seconds=1.0)
    assert credit.debt_s == 0.0
    assert credit.balance_s == pytest.approx(START_ROUNDS - 5.0 + 501 * SHARE)


rounds = st.lists(
    st.tuples(st.floats(0.1, 5.0), st.floats(0.0, 4.0)),  # plain seconds; the worst loss beyond
    min_size=1,
    max_size=200,
)


@given(rounds=rounds, data=st.data())
def test_no_stretch_of_rounds_loses_more_than_the_bound(rounds, data) -> None:
    """The proof of the module's docstring, with adversarial rounds: speculation whenever the
    account covers a round's worst loss."""
    credit = account(1.0)
    took, plain, balances = [0.0], [0.0], [credit.balance_s]
    for plain_s, loss_s in rounds:
        is_reading = data.draw(st.booleans()) and (credit.debt_s == 0.0)
        if is_reading:
            credit.lend(1.0)
        loss_s = min(loss_s, 1.0) if is_reading or credit.covers(1.0) else 0.0
        seconds = plain_s + data.draw(st.floats(-plain_s, 1.0)) * loss_s
        credit.settle(plain_s, seconds, is_reading=is_reading)
        took.append(took[-1] + seconds)
        plain.append(plain[-1] + plain_s)
        balances.append(credit.balance_s)
    assert min(balances) >= -1e-9
    for first in range(len(took)):
        for last in range(first, len(took)):
            lost = (took[last] - took[first]) - (plain[last] - plain[first])
            allowed = NUM_ROUNDS * 1.0 + 1.0 + SHARE * (plain[last] - plain[first])
            assert lost <= allowed + 1e-6
