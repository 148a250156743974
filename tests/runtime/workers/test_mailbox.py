"""What one side writes the other reads, and nothing of the round or the text before."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.device.host import HostDevice
from runtime.kv.slots import SlotRef
from runtime.sampling.proposal import Drafted, Lookup, Nothing, SparseLaw
from runtime.spec.fallback import ProposalKind
from runtime.workers import mailbox as mail
from runtime.workers.mailbox import Kind, Mailbox

ROWS, K, LEASE = 2, 3, 5


@pytest.fixture
def mailbox():
    device = HostDevice()
    yield Mailbox(device, ROWS, K)
    device.close()


def point_mass(token: int) -> SparseLaw:
    return SparseLaw(np.array([token], np.int32), np.ones(1))


def test_a_row_that_nobody_wrote_proposes_nothing(mailbox: Mailbox) -> None:
    assert mailbox.proposal(0, LEASE) == Nothing()


def test_proposals_arrive_by_row_and_say_what_they_are(mailbox: Mailbox) -> None:
    """A looked-up token is judged as a point mass, a drafted one by the law it was drawn from."""
    mailbox.propose(0, LEASE, Kind.HIT, (5, 6, 7))
    mailbox.propose(1, LEASE, Kind.LOOKUP, (8,))
    assert mailbox.proposal(0, LEASE) == Drafted((5, 6, 7), None)
    assert mailbox.proposal(1, LEASE) == Lookup((8,))


def test_a_proposal_to_the_last_holder_of_a_slot_is_none_to_the_next(mailbox: Mailbox) -> None:
    """A text that joined in the slot was once judged on the drafts of the one that left."""
    mailbox.propose(0, LEASE, Kind.HIT, (5, 6, 7))
    assert mailbox.proposal(0, LEASE + 1) == Nothing()


def test_a_proposals_laws_are_its_own(mailbox: Mailbox) -> None:
    """An old law judges a new token by odds it was not drawn with; that is not lossless."""
    old, new = (point_mass(5), point_mass(6)), (point_mass(7),)
    mailbox.propose(0, LEASE, Kind.HIT, (5, 6), old)
    mailbox.propose(0, LEASE, Kind.JIT, (7,), new)
    proposal = mailbox.proposal(0, LEASE)
    assert isinstance(proposal, Drafted)
    assert proposal.law is new
    mailbox.propose(0, LEASE, Kind.HIT, (7,))
    assert mailbox.proposal(0, LEASE) == Drafted((7,), None)


def test_a_shorter_proposal_leaves_nothing_of_a_longer_one(mailbox: Mailbox) -> None:
    mailbox.propose(0, LEASE, Kind.HIT, (5, 6, 7))
    mailbox.propose(0, LEASE, Kind.NONE)
    assert mailbox.proposal(0, LEASE) == Nothing()
    assert not mailbox.proposals.array[0, mail.PROPOSED :].any()


def test_a_moved_row_takes_its_proposal_and_laws_with_it(mailbox: Mailbox) -> None:
    laws = (point_mass(5),)
    mailbox.propose(1, LEASE, Kind.HIT, (5,), laws)
    mailbox.move(SlotRef(1, LEASE), SlotRef(0, LEASE + 1))
    assert mailbox.proposal(0, LEASE + 1) == Drafted((5,), laws)
    assert mailbox.proposal(0, LEASE) == Nothing()


def test_a_moved_row_does_not_take_the_proposal_to_the_slots_last_holder_with_it(
    mailbox: Mailbox,
) -> None:
    """A text that had no proposal yet was judged on leftovers, stamped with its own new lease."""
    mailbox.propose(1, LEASE, Kind.HIT, (5,))
    mailbox.move(SlotRef(1, LEASE + 1), SlotRef(0, LEASE))
    assert mailbox.proposal(0, LEASE) == Nothing()


@pytest.mark.parametrize("accepted", range(K + 1))
def test_an_outcome_arrives_with_the_tokens_it_emits(mailbox: Mailbox, accepted: int) -> None:
    drafts = (5, 6, 7)
    mailbox.decide(1, LEASE, Kind.HIT, drafts, K, 99)  # a longer one of the round before
    mailbox.decide(1, LEASE, Kind.JIT, drafts, accepted, 8)
    cells = mailbox.outcomes.array[1].tolist()
    assert cells[: mail.EMITTED] == [LEASE, Kind.JIT, K, accepted]
    assert cells[mail.EMITTED : mail.EMITTED + accepted + 1] == [*drafts[:accepted], 8]


def test_all_rows_decided_at_once_are_what_they_are_one_by_one(mailbox: Mailbox) -> None:
    drafts, accepted, bonus = [[5, 6, 7], [8, 0, 0]], [2, 1], [9, 4]
    for row in range(ROWS):
        mailbox.decide(row, LEASE + row, Kind.HIT, drafts[row], accepted[row], bonus[row])
    one_by_one = mailbox.outcomes.array.tolist()
    mailbox.outcomes.array[:] = 0
    outcomes = [
        mailbox.outcome(
            LEASE + row,
            Kind.HIT,
            [LEASE + row, Kind.HIT, 3, *drafts[row], 0],
            [*drafts[row][: accepted[row]], bonus[row]],
        )
        for row in range(ROWS)
    ]
    mailbox.decide_all(1, outcomes)
    mailbox.send(1)
    for row, cells in enumerate(mailbox.outcomes.array.tolist()):
        end = mail.EMITTED + accepted[row] + 1
        assert cells[:end] == one_by_one[row][:end]


def test_a_reading_is_what_was_sent_and_another_rounds_reading_is_not(mailbox: Mailbox) -> None:
    """The host reads one round while the next one is being written."""
    nothing = [0] * mailbox.proposals.shape[1]
    for place, bonus in enumerate((7, 8)):
        outcome = mailbox.outcome(LEASE, Kind.NONE, nothing, [bonus])
        mailbox.decide_all(place, [outcome] * ROWS)
        mailbox.send(place)
        assert mailbox.read(place).rows[0][: mailbox.rank_at] == mailbox.outcomes.array[0].tolist()
    assert [mailbox.read(place).rows[1][mail.EMITTED] for place in range(2)] == [7, 8]


@pytest.mark.parametrize(("rank", "cell"), [(None, 0), (0, 1), (5, 6)])
def test_the_rank_of_the_last_bonus_token_is_no_drafted_token(
    mailbox: Mailbox, rank: int | None, cell: int
) -> None:
    mailbox.propose(0, LEASE, Kind.HIT, (5, 6, 7), rank=rank)
    assert mailbox.proposals.array[0].tolist()[-1] == cell
    assert mailbox.proposal(0, LEASE) == Drafted((5, 6, 7), None)


def test_every_kind_but_skip_has_a_source_in_the_statistics() -> None:
    kinds = [kind for kind in Kind if kind is not Kind.SKIP]
    assert {kind.source for kind in kinds} == set(ProposalKind)
    assert {kind for kind in kinds if kind.source.name != kind.name} == {Kind.OVERRULED}
    assert Kind.OVERRULED.source is ProposalKind.LOOKUP
    assert [kind for kind in kinds if kind.was_prepared] == [Kind.HIT, Kind.OVERRULED]
