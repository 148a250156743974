from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import CapacityError, UsageError
from engines.manifest import DRAFT, TARGET, Limits
from export.bench.calls import profiles_of, timed_calls
from export.bench.data_loader import feeds
from tests.export.bench.manifests import manifest_for

LIMITS = Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6)
ANY_LIMITS = st.builds(
    Limits,
    max_len=st.integers(2, 2000),
    max_batch=st.integers(1, 4),
    num_draft=st.integers(0, 8),
    max_branches=st.integers(0, 32),
)


def test_each_kind_of_call_has_the_size_that_decoding_uses() -> None:
    target = timed_calls(manifest_for(TARGET, LIMITS), batch=2, length=100)
    draft = timed_calls(manifest_for(DRAFT, LIMITS), batch=2, length=100)
    sizes = {
        (role, timed.kind): (timed.call.batch, timed.call.tokens, timed.call.logits)
        for role, calls in ((TARGET, target), (DRAFT, draft))
        for timed in calls
    }
    assert sizes == {
        (TARGET, "step"): (2, 1, 1),
        (TARGET, "verify"): (2, 5, 5),
        (TARGET, "prompt"): (1, 64, 1),
        (DRAFT, "root"): (2, 1, 1),
        (DRAFT, "branch"): (2, 6, 6),
        (DRAFT, "prompt"): (1, 64, 1),
    }
    assert {timed.kind: timed.tokens for timed in target} == {
        "step": 2,
        "verify": 0,
        "prompt": 64,
    }
    assert {timed.kind: timed.tokens for timed in draft} == {"root": 2, "branch": 0, "prompt": 64}


def test_a_verification_may_be_shorter_and_nothing_else_changes() -> None:
    manifest = manifest_for(TARGET, LIMITS)
    usual = timed_calls(manifest, batch=2, length=100)
    for num in (2, 5):
        step, verify, prompt = timed_calls(manifest, batch=2, length=100, num_verified=num)
        assert (step, prompt) == (usual[0], usual[2])
        assert (verify.call.tokens, verify.call.logits) == (num, num)


@pytest.mark.parametrize(
    ("num", "error", "words"),
    [
        (1, UsageError, "--tokens is 1, a verification has at least 2"),
        (6, CapacityError, "--tokens 6 is above the 5 .* rebuild it with --num-draft 5"),
    ],
)
def test_a_verification_that_cannot_be_is_refused(
    num: int, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        timed_calls(manifest_for(TARGET, LIMITS), batch=1, length=None, num_verified=num)


def test_rows_are_a_bucket_that_holds_scratch_text_and_call() -> None:
    for timed in timed_calls(manifest_for(DRAFT, LIMITS), batch=1, length=110):
        expected = {"root": 192, "branch": 192, "prompt": 176 + 24}
        assert timed.call.rows == expected[timed.kind]


@given(limits=ANY_LIMITS, role=st.sampled_from([TARGET, DRAFT]), data=st.data())
def test_every_call_of_every_bundle_fits_its_profile_and_its_caches(
    limits: Limits, role: str, data: st.DataObject
) -> None:
    """T14, T15: no call that a plan has no profile for, none beyond the built limits."""
    manifest = manifest_for(role, limits, compiled=data.draw(st.booleans()))
    length = data.draw(st.none() | st.integers(1, limits.max_len - 1))
    batch = data.draw(st.integers(1, limits.max_batch))
    calls = timed_calls(manifest, batch=batch, length=length)
    names = [profile.name for profile in profiles_of(manifest)]
    assert [timed.kind.replace("root", "step") for timed in calls] == names
    for timed in calls:
        call, profile = timed.call, profiles_of(manifest)[timed.profile]
        assert profile.holds(
            batch=call.batch, tokens=call.tokens, logits=call.logits, length=call.rows
        )
        assert call.rows in manifest.lengths
        assert call.text >= 0
        new_rows = 0 if call.branches else call.tokens
        assert call.scratch + call.text + new_rows <= call.rows
        if call.branches:
            assert call.tokens <= call.scratch
        if length is not None and timed.kind != "prompt":
            assert call.text == length
        border = {s.name: (s.dtype.value, s.shape) for s in manifest.inputs if "kv" not in s.name}
        assert feeds(border, call)["positions"].max() < manifest.kv.trunk_rows + 1


@pytest.mark.parametrize(
    ("batch", "length", "error", "words"),
    [
        (4, None, CapacityError, "--batch 4 is above the 3 .*--max-batch 4"),
        (0, None, UsageError, "--batch is 0"),
        (1, 160, CapacityError, "--length 160 leaves no room.*160 tokens.*at most --length 159"),
        (1, 0, UsageError, "--length is 0"),
    ],
)
def test_what_the_bundle_was_not_built_for_is_refused_with_figures(
    batch: int, length: int | None, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        timed_calls(manifest_for(TARGET, LIMITS), batch=batch, length=length)


def test_the_longest_text_leaves_room_for_every_call() -> None:
    calls = {
        timed.kind: timed.call
        for timed in timed_calls(manifest_for(TARGET, LIMITS), batch=1, length=159)
    }
    assert calls["verify"].text == 159
    assert calls["prompt"].text == 176 - 64
    mask = feeds({"mask": ("bool", (1, 1, 5, 176))}, calls["verify"])["mask"]
    np.testing.assert_array_equal(mask[0, 0].sum(axis=-1), 159 + 1 + np.arange(5))
