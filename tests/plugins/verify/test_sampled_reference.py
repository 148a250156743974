"""Verification with a temperature in numpy: what it says, and the runtime's own form of it."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError, UsageError
from plugins.law.reference import Edits, LawParams, Sampling, adjusted
from plugins.noise.reference import Purpose, gumbel, uniform
from plugins.verify.sampled import Outcome, Status, draw, verify_coupled, verify_ratio
from runtime.sampling import coupled, ratio
from runtime.sampling.params import SamplingParams
from runtime.sampling.proposal import Drafted, Nothing, SparseLaw, Verdict
from tests.helpers.sampling_cases import DraftedBlock, as_float32, drafted_block

INF = np.inf


def verdicts(outcome: Outcome) -> list[tuple[int, int, int]]:
    arrays = (outcome.accepted, outcome.next, outcome.status)
    return list(zip(*(each.tolist() for each in arrays), strict=True))


def runtime_verdict(rule: str, block: DraftedBlock, sequence: int) -> tuple[int, int, int] | None:
    """The verdict of runtime.sampling, which knows bans but no penalties, on adjusted rows; None
    where it refuses the proposal."""
    sampling, count = block.samplings[sequence], int(block.num_draft[sequence])
    drafts = block.drafts[sequence, :count].tolist()
    rows = np.array(
        [
            adjusted(
                as_float32(block.logits[sequence, place]),
                sampling.params,
                sampling.edits,
                drafts[:place],
                block.vocab_size,
            )
            for place in range(count + 1)
        ]
    )
    given = sampling.params
    params = SamplingParams(
        *(given.temperature, given.top_k, given.top_p, sampling.seed, given.min_p),
        banned_ids=sampling.banned_ids,
        banned_before=sampling.banned_before,
    )
    first = sampling.first_position
    try:
        if rule == "coupled":
            noise = lambda position: gumbel(sampling.seed, position, rows.shape[1])  # noqa: E731
            found = coupled.verify(rows, drafts, params, noise, first)
        else:
            used = [ids >= 0 for ids in block.q_ids[sequence, :count]]
            laws = tuple(
                SparseLaw(ids[mask], probs[mask])
                for ids, probs, mask in zip(
                    block.q_ids[sequence], block.q_probs[sequence], used, strict=False
                )
            )
            proposal = Drafted(tuple(drafts), laws) if drafts else Nothing()
            found = ratio.verify(rows, proposal, params, first)
    except BackendError:
        return (-1, 0, Status.DAMAGED)
    except UsageError:
        return None
    return (found.accepted, found.bonus, Status.DONE)


@pytest.mark.parametrize("rule", ["coupled", "ratio"])
def test_the_runtime_gives_the_same_verdicts(rule):
    """1,000 blocks: the fast form that decodes on the CPU has the meaning written down here."""
    rng = np.random.default_rng(8)
    compared = 0
    accepted = set()
    while compared < 1000:
        block = drafted_block(rng, rule, vocab_size=int(rng.integers(1, 300)))
        found = verdicts(reference(rule, block))
        for sequence, verdict in enumerate(found):
            expected = runtime_verdict(rule, block, sequence)
            if expected is None:
                continue  # it refuses a broken draft law in advance, wherever it stands
            if expected[2] == Status.DAMAGED:
                assert verdict[1:] == (0, Status.DAMAGED)
            else:
                assert verdict == expected
            compared += 1
            accepted.add(verdict[0])
    assert accepted == {0, 1, 2, 3, 4}


def reference(rule: str, block: DraftedBlock) -> Outcome:
    logits = as_float32(block.logits)
    if rule == "coupled":
        return verify_coupled(
            logits, block.drafts, block.num_draft, block.samplings, block.vocab_size
        )
    return verify_ratio(
        logits,
        block.drafts,
        block.num_draft,
        block.q_ids,
        block.q_probs,
        block.samplings,
        block.vocab_size,
    )


def ratio_of(logits, drafts, q_ids, q_probs, sampling) -> tuple[int, int, int]:
    """One sequence, all of whose drafts count."""
    [verdict] = verdicts(
        verify_ratio(
            np.array([logits], np.float32),
            np.array([drafts], np.int64).reshape(1, -1),
            np.array([len(drafts)]),
            np.array([q_ids], np.int32),
            np.array([q_probs], np.float64),
            [sampling],
        )
    )
    return verdict


def test_a_sequence_goes_on_until_its_own_rows_are_broken():
    """What lies behind the last accepted token is not the sequence's business."""
    logits = np.array([[[5, 0], [0, 5], [np.nan, 0]]] * 2, np.float32)
    drafts = np.array([[0, 1], [0, 0]])
    found = verify_coupled(logits, drafts, np.array([2, 2]), [Sampling(), Sampling()])
    assert verdicts(found) == [(2, 0, Status.DAMAGED), (1, 1, Status.DONE)]


def test_a_draft_that_its_law_excludes_is_told_and_not_judged():
    """The rule's formula would accept it for free: 0 < p."""
    sampling = Sampling(LawParams(temperature=1.0))
    rows = [[0.0, 0.0], [0.0, 0.0]]
    for drafts in ([0], [-1], [2]):
        found = ratio_of(rows, drafts, [[1, -1]], [[1.0, 0.0]], sampling)
        assert found == (0, 0, Status.FOREIGN_DRAFT)


def test_greedy_rows_of_the_ratio_rule_read_no_draft_law():
    rows = [[0.0, 3.0], [4.0, 0.0]]
    assert ratio_of(rows, [1], [[0]], [[0.0]], Sampling()) == (1, 0, Status.DONE)
    assert ratio_of(rows, [0], [[0]], [[1.0]], Sampling()) == (0, 1, Status.DONE)


def test_penalties_see_the_drafts_of_the_block():
    """S8: the second row of the block already counts the first draft."""
    sampling = Sampling(LawParams(presence=2), edits=Edits())
    logits = np.array([[[1, 0], [1, 0]]], np.float32)
    found = verify_coupled(logits, np.array([[0]]), np.array([1]), [sampling])
    assert verdicts(found) == [(1, 1, Status.DONE)]


def test_each_decision_has_its_own_uniform():
    sampling = Sampling(LawParams(temperature=1.0), seed=3, first_position=5)
    rows = np.log([[0.5, 0.5], [0.25, 0.75]])
    accept = uniform(3, 5, Purpose.ACCEPT)
    accepted, token, _ = ratio_of(rows, [0], [[0]], [[1.0]], sampling)
    assert accepted == int(accept < 0.5)
    if accepted:
        assert token == draw(np.array([0.25, 0.75]), uniform(3, 6, Purpose.RESIDUAL))
    else:
        assert token == 1
    assert Verdict(accepted, token) == Verdict(accepted, token)
