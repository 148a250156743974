"""When a text is asked for again, and when it is given up."""

from __future__ import annotations

import pytest

from runtime.serve.ray.retry import LONGEST_PAUSE_S, MOST_ATTEMPTS, MOST_FALLEN, Attempts


@pytest.mark.parametrize(
    ("may_restart", "has_begun", "is_retried"),
    [(True, True, True), (True, False, True), (False, False, True), (False, True, False)],
)
def test_only_what_was_shown_cannot_be_asked_again(
    may_restart: bool, has_begun: bool, is_retried: bool
) -> None:
    pause_s = Attempts(may_restart).lost(None, was_taken=True, has_begun=has_begun)
    assert (pause_s is not None) == is_retried


def test_the_first_retry_is_at_once_and_later_ones_wait_for_a_new_replica() -> None:
    attempts = Attempts(may_restart=True)
    pauses = [attempts.lost(None, was_taken=False, has_begun=False) for _ in range(MOST_ATTEMPTS)]
    assert pauses[0] == 0
    assert pauses[-1] is None, "it is never given up"
    waited = [each for each in pauses if each]
    assert waited == sorted(waited)
    assert waited[-1] == LONGEST_PAUSE_S
    assert sum(waited) > 15, "less than what Ray Serve needs to replace a replica"


def test_a_text_that_replicas_go_down_with_is_not_given_to_all_of_them() -> None:
    """It may be what kills them; those that were gone before they had it do not count."""
    attempts = Attempts(may_restart=True)
    fates = [False, True, False, *[True] * (MOST_FALLEN - 1)]
    pauses = [attempts.lost(None, was_taken=taken, has_begun=False) for taken in fates]
    assert None not in pauses[:-1]
    assert pauses[-1] is None


def test_replicas_that_failed_alive_are_avoided_once_each() -> None:
    attempts = Attempts(may_restart=True)
    for replica in ("a", None, "a", "b"):
        attempts.lost(replica, was_taken=True, has_begun=False)
    assert attempts.avoided == ["a", "b"]
