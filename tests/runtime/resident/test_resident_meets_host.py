"""Resident and host workers make the same rounds: the same drafts, hits and ranks, row by row.

Tokens alone show little of the draft's side: a wrong candidate or a wrong cache row costs
acceptance or hits, never a token.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.device.host import HostDevice
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.spec.plan import RoundPlan
from tests.helpers.policies import Scripted
from tests.helpers.resident_pair import ResidentPair
from tests.helpers.toy_pair import VOCAB, ToyPair

K, W = 3, 6
LAWS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 0, 5]),
    seed=st.integers(0, 2**32),
)


def rounds_of(pair: Any, policy: Scripted, texts: list) -> list[list[tuple]]:
    """By slot: what each of its rounds brought and gave."""
    pair.draft.statistics.observe = lambda **_: None  # what is learnt reaches a device later
    tickets = []
    for prompt, params, max_tokens in texts:
        request = Request(prompt, params, max_tokens, frozenset(), pair.max_len)
        tickets.append(pair.scheduler.submit(request))
    while pair.scheduler.step():
        pass
    pair.device.close()
    rows = [row for report in policy.reports for row in report.rows]
    found: dict[int, list[tuple]] = {}
    for row in rows:
        told = (row.kind, row.num_drafted, row.accepted, row.num_emitted)
        prepared = (row.hit, row.rank) if row.hit is not None else None
        found.setdefault(row.slot, []).append((*told, prepared))
    return list(found.values())


@settings(deadline=None)
@given(
    mode=st.sampled_from(["sd", "ssd", "ssd", "ssd"]),
    seed=st.integers(0, 20),
    texts=st.lists(
        st.tuples(
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), LAWS, st.integers(5, 40)
        ),
        min_size=1,
        max_size=3,
    ),
    agreement=st.sampled_from([0.5, 2.0, 5.0]),
    draft_vocab=st.sampled_from([None, 7]),
    num_draft=st.integers(1, K),
    num_branches=st.integers(1, W),
)
def test_every_round_is_the_hosts(
    work, mode, seed, texts, agreement, draft_vocab, num_draft, num_branches
) -> None:
    """Texts end at different times, so rows move; and plans may use fewer branches than built."""
    options = {
        "table_seed": seed,
        "num_draft": K,
        "num_branches": W,
        "max_batch": 3,
        "agreement": agreement,
        "draft_vocab": draft_vocab,
    }
    plan = RoundPlan(mode, num_draft, num_branches)
    policy = Scripted([plan], K, W)
    expected = rounds_of(ToyPair(HostDevice(), "ssd", policy=policy, **options), policy, texts)
    policy = Scripted([plan], K, W)
    pair = ResidentPair(HostDevice(check=True), "ssd", work=work, policy=policy, **options)
    assert rounds_of(pair, policy, texts) == expected
