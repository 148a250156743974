"""What one side writes the other reads, and nothing of the round before."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.device.host import HostDevice
from runtime.sampling.proposal import Drafted, Nothing, SparseLaw
from runtime.spec.outcome import Outcome
from runtime.workers.mailbox import Mailbox

ROWS, K = 2, 3


@pytest.fixture
def mailbox():
    device = HostDevice()
    yield Mailbox(device, ROWS, K)
    device.close()


def point_mass(token: int) -> SparseLaw:
    return SparseLaw(np.array([token], np.int32), np.ones(1))


def test_a_row_that_nobody_wrote_proposes_nothing(mailbox: Mailbox) -> None:
    assert mailbox.proposal(0) == Nothing()


def test_proposals_arrive_by_row(mailbox: Mailbox) -> None:
    mailbox.propose(0, (5, 6, 7), None)
    mailbox.propose(1, (8,), None)
    assert mailbox.proposal(0) == Drafted((5, 6, 7), None)
    assert mailbox.proposal(1) == Drafted((8,), None)


def test_a_proposals_laws_are_its_own(mailbox: Mailbox) -> None:
    """An old law judges a new token by odds it was not drawn with; that is not lossless."""
    old, new = (point_mass(5), point_mass(6)), (point_mass(7),)
    mailbox.propose(0, (5, 6), old)
    mailbox.propose(0, (7,), new)
    proposal = mailbox.proposal(0)
    assert isinstance(proposal, Drafted)
    assert proposal.law is new
    mailbox.propose(0, (7,), None)
    assert mailbox.proposal(0) == Drafted((7,), None)


def test_a_shorter_proposal_leaves_nothing_of_a_longer_one(mailbox: Mailbox) -> None:
    mailbox.propose(0, (5, 6, 7), None)
    mailbox.propose(0, (), None)
    assert mailbox.proposal(0) == Nothing()


def test_clearing_ends_every_proposal(mailbox: Mailbox) -> None:
    """The next batch must not be judged on the drafts of the last one."""
    for row in range(ROWS):
        mailbox.propose(row, (5, 6), None)
    mailbox.clear()
    assert [mailbox.proposal(row) for row in range(ROWS)] == [Nothing()] * ROWS


@pytest.mark.parametrize("accepted", range(K + 1))
def test_an_outcome_arrives_with_the_tokens_it_emits(mailbox: Mailbox, accepted: int) -> None:
    drafts = (5, 6, 7)
    mailbox.decide(1, drafts, Outcome(K, 99))  # a longer one of the round before
    mailbox.decide(1, drafts, Outcome(accepted, 8))
    assert mailbox.outcome(1) == Outcome(accepted, 8)
    assert mailbox.emitted(1) == [*drafts[:accepted], 8]
