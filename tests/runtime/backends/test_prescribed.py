"""The prescribed backend's own promises; those of every backend are in tests/contract."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError
from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.api import CallShape
from runtime.backends.prescribed import PrescribedSession
from runtime.device.host import HostDevice
from tests.helpers.prescribed import prescribed

LIMITS = Limits(max_len=64, max_batch=2, num_draft=4, max_branches=6)


@pytest.fixture
def device():
    opened = HostDevice()
    yield opened
    opened.close()


def call(session, positions, tokens, num_draft):
    """One call at those positions; all its rows give logits."""
    step = session.prepare(CallShape(0, 1, len(tokens), len(tokens)))
    step.tokens[0], step.positions[0] = tokens, positions
    step.logit_rows[0] = range(len(tokens))
    step.num_draft[0] = num_draft
    step.run()
    return step


def test_a_target_follows_its_text_whatever_it_is_fed(device):
    text = np.array([3, 1, 4, 1, 5])
    session = PrescribedSession(TARGET, np.zeros(9), LIMITS, device, text=text)
    step = call(session, [1, 2, 3], [7, 4, 8], 2)
    assert step.logits[0].argmax(-1).tolist() == [4, 1, 5]
    assert (step.accepted[0], step.next[0]) == (1, 1)
    # Behind its end the text begins anew, and the last call's answer is gone.
    step = call(session, [3, 4, 5], [7, 5, 3], 2)
    assert step.logits[0].argmax(-1).tolist() == [5, 3, 1]
    assert (step.logits > 0).sum() == 3
    assert (step.accepted[0], step.next[0]) == (2, 1)


def test_drafts_beyond_the_rows_own_count_are_not_judged(device):
    session = PrescribedSession(TARGET, np.zeros(9), LIMITS, device, text=np.array([3, 1, 4, 1]))
    step = call(session, [1, 2, 3], [7, 4, 1], 0)
    assert (step.accepted[0], step.next[0]) == (0, 4)


def test_a_draft_always_has_the_same_favourite(device):
    ids = np.array([2, 5, 9])
    logits = np.array([0.5, 2.0, 1.0])
    session = PrescribedSession(DRAFT, logits, LIMITS, device, vocab_size=12, vocab_map=ids)
    step = call(session, [0, 1], [3, 4], 0)
    assert step.sample.tolist() == [[5, 5]]
    np.testing.assert_array_equal(step.logits[0, 1], logits)


def test_a_failed_call_leaves_zeroed_caches(device):
    session = prescribed(TARGET, device)
    session.kv_buffer.array[:] = np.nan
    step = session.prepare(CallShape(0, 1, 2, 2))
    step.write_at[0] = step.mask.shape[-1] - 1
    with pytest.raises(BackendError, match="leaves the cache"):
        step.run()
    assert not session.kv_buffer.array.any()


def test_the_time_of_calls_is_counted_apart(device):
    session = prescribed(TARGET, device)
    before = session.busy_s
    call(session, [0, 1], [3, 4], 1)
    assert session.busy_s > before
