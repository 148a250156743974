"""The drawn backend: what it is told to draw is what the workers' own rules then find."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError
from engines.manifest import Limits
from plugins.verify.reference import verify
from runtime.backends.api import CallShape
from runtime.backends.drawn import AHEAD, NEXT, DrawnDraft, DrawnTarget
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.sampling.api import rule
from runtime.sampling.params import SamplingParams

LIMITS = Limits(max_len=64, max_batch=3, num_draft=4, max_branches=6)
NUM_RANKS = 5
GREEDY = SamplingParams()


@pytest.fixture
def device():
    opened = HostDevice()
    yield opened
    opened.close()


class Answers:
    """A law that gives prepared answers and keeps the questions."""

    def __init__(self, *answers: tuple[int, int | None]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[int, bool]] = []

    def draw(self, num_drafted: int, *, ahead: bool) -> tuple[int, int | None]:
        self.asked.append((num_drafted, ahead))
        return self.answers.pop(0)


def draft_of(device, taken=None) -> DrawnDraft:
    return DrawnDraft(
        LIMITS,
        device,
        NUM_RANKS,
        lambda shape: 10.0 * shape.num_slots + shape.num_tokens,
        lambda _began, seconds: 0.0 if taken is None else taken.append(seconds) or 0.0,
    )


def drafted(draft: DrawnDraft, *, branch: bool) -> tuple[int, np.ndarray]:
    """Its choice and its logits, on the trunk or in a branch."""
    layout = SlotLayout(draft.manifest.kv, LIMITS.max_branches)
    draft.bind_rows(layout.rows_for(8))
    step = draft.prepare(CallShape(0, 1, 1, 1, copy=int(branch)))
    step.write_at[:] = layout.scratch_row(0) if branch else layout.trunk_row(3)
    step.run()
    return int(step.sample[0, 0]), step.logits[0, 0].copy()


def verified(device, drafts: list[list[int]], law: Answers):
    target = DrawnTarget(LIMITS, device, NUM_RANKS, lambda _: 0.0, lambda *_: 0.0, law)
    width = 1 + max(map(len, drafts))
    target.bind_rows(16)
    step = target.prepare(CallShape(0, len(drafts), width, width))
    for row, tokens in enumerate(drafts):
        step.tokens[row, 1 : 1 + len(tokens)] = tokens
        step.num_draft[row] = len(tokens)
    step.logit_rows[:] = np.arange(width)
    step.run()
    return step


@pytest.mark.parametrize("branch", [False, True])
@pytest.mark.parametrize("rank", [*range(NUM_RANKS), None])
def test_a_rejection_s_bonus_token_has_the_rank_that_was_drawn(device, branch, rank) -> None:
    """The worker ranks candidates by the draft's logits; another order were another law."""
    choice, logits = drafted(draft_of(device), branch=branch)
    step = verified(device, [[choice] * 3], Answers((1, rank)))
    assert step.accepted.tolist() == [1]
    found = rule("coupled").bonus_candidates(logits, GREEDY, 5, NUM_RANKS, exclude=choice).tolist()
    bonus = int(step.next[0])
    assert (found.index(bonus) if bonus in found else None) == rank


@pytest.mark.parametrize("rank", [*range(NUM_RANKS), None])
def test_the_bonus_token_after_all_drafts_has_the_rank_that_was_drawn(device, rank) -> None:
    choice, logits = drafted(draft_of(device), branch=False)
    for drafts in ([], [choice] * 2, [AHEAD] * 2):
        step = verified(device, [drafts], Answers((len(drafts), rank)))
        found = rule("coupled").bonus_candidates(logits, GREEDY, 5, NUM_RANKS).tolist()
        bonus = int(step.next[0])
        assert (found.index(bonus) if bonus in found else None) == rank


def test_the_law_is_asked_by_where_the_drafts_came_from(device) -> None:
    draft = draft_of(device)
    ahead, _ = drafted(draft, branch=True)
    in_time, _ = drafted(draft, branch=False)
    assert (ahead, in_time) == (AHEAD, NEXT)
    law = Answers((0, 0), (2, 0), (0, None))
    step = verified(device, [[ahead] * 4, [in_time, ahead], []], law)
    assert law.asked == [(4, True), (2, False), (0, False)]
    assert step.accepted.tolist() == [0, 2, 0]


def test_logits_lead_to_the_same_verdict_as_the_outputs(device) -> None:
    drafts = [[AHEAD] * 3, [NEXT] * 3, [NEXT] * 3]
    step = verified(device, drafts, Answers((3, 0), (0, 2), (2, None)))
    accepted, bonus = verify(step.logits, step.tokens[:, 1:], step.num_draft)
    assert accepted.tolist() == step.accepted.tolist() == [3, 0, 2]
    assert bonus.tolist() == step.next.tolist()


def test_a_call_takes_what_its_shape_takes(device) -> None:
    taken: list[float] = []
    draft = draft_of(device, taken)
    drafted(draft, branch=True)
    step = draft.prepare(CallShape(0, 3, 4, 1))
    step.write_at[:] = draft.manifest.kv.scratch_rows
    step.run()
    assert taken == [11.0, 34.0]


def test_writing_behind_the_cache_is_refused(device) -> None:
    draft = draft_of(device)
    step = draft.prepare(CallShape(0, 1, 1, 1))
    step.write_at[:] = 10_000
    with pytest.raises(BackendError, match="leaves the cache"):
        step.run()
