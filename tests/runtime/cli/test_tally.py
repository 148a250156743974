"""The arithmetic of a comparison, by hand-made figures."""

from __future__ import annotations

import dataclasses
import math

from runtime.cli.tally import ModeRun, first_divergence
from runtime.llm import Completion, Stats
from runtime.stats import Span
from tests.runtime.cli.fake_llm import SETTINGS, stats


def run(*answers: tuple[tuple[int, ...], Stats]) -> ModeRun:
    completions = tuple(
        Completion("", ids, "length", "ssd", None, 1, figures) for ids, figures in answers
    )
    return ModeRun("ssd", "ssd", None, completions, SETTINGS)


def test_speed_is_over_all_prompts_and_the_median_is_over_prompts() -> None:
    """A mean of per-prompt speeds lets a short easy answer outweigh a long one."""
    short = stats(num_tokens=10, decode_s=0.1)
    long = stats(num_tokens=90, decode_s=9.9)
    both = run(((), short), ((), long), ((), long))
    assert math.isclose(both.tokens_per_second, 190 / 19.9)
    assert math.isclose(both.median_tokens_per_second, 90 / 9.9)


def test_rates_count_rounds_not_prompts() -> None:
    few = stats(num_rounds=1, num_emitted=4, num_hits=1)
    many = stats(num_rounds=9, num_emitted=9, num_hits=0)
    both = run(((), few), ((), many))
    assert both.acceptance_length == 1.3
    assert both.hit_rate == 0.1


def test_hits_are_told_apart_by_what_came_before() -> None:
    """Both are needed: after a miss the next outcome is another bet than after a hit."""
    one = stats(
        num_hits=5,
        num_hits_after_hit=4,
        num_rounds_after_hit=5,
        num_hits_after_miss=1,
        num_rounds_after_miss=5,
        predicted_hit_rate=0.25,
    )
    other = stats(num_hits=0, num_rounds_after_hit=0, num_rounds_after_miss=0)
    both = run(((), one), ((), other))
    assert (both.hit_rate_after_hit, both.hit_rate_after_miss, both.hit_rate) == (0.8, 0.2, 0.5)
    assert both.predicted_hit_rate == 0.25
    assert run(((), other)).hit_rate is None
    assert run(((), other)).predicted_hit_rate is None


def test_predicted_hits_are_of_the_outcomes_that_something_was_predicted_of() -> None:
    """A prompt with outcomes and no prediction counted as one of 0 %."""
    known = stats(num_rounds_after_hit=4, num_rounds_after_miss=4, predicted_hit_rate=0.5)
    unknown = stats(num_rounds_after_hit=0, num_rounds_after_miss=8, predicted_hit_rate=None)
    assert run(((), known), ((), unknown)).predicted_hit_rate == 0.5


def test_speed_of_prompts_decoded_at_once_is_by_the_clock() -> None:
    """Their decoding times overlap: their sum would be several times the truth."""
    figures = stats(num_tokens=30, decode_s=2.0)
    together = dataclasses.replace(run(((), figures), ((), figures)), wall_s=2.5)
    assert together.tokens_per_second == 24


def test_rows_of_a_batch_share_the_devices_seconds() -> None:
    """Each row's are the whole device's while it ran: added up, they were twice the clock's."""
    one = Span((1, 3), (0, 2), (0, 1.5), (0, 0.5), (0, 3), (0, 6))
    two = Span((2, 5), (1, 4), (1, 3.0), (0, 1.0), (1, 4), (2, 8))
    later = Span((9, 10), (6, 7), (4, 5.0), (2, 2.0), (4, 5), (8, 9))
    rows = [((), stats(num_hits=1, decode_s=9, exposed_s=9, span=s)) for s in (two, later, one)]
    batch = dataclasses.replace(run(*rows), wall_s=10.0)
    assert (batch.decode_s, batch.hidden_s, batch.exposed_s) == (5, 3, 1)
    assert batch.predicted_hit_rate == 5 / 9


def test_modes_that_prepare_nothing_have_no_hit_rate() -> None:
    """0 % would say that every lookup missed."""
    nothing = run(((), stats(num_hits=None, num_rounds_after_miss=9)))
    assert (nothing.hit_rate, nothing.hit_rate_after_miss) == (None, None)


def test_nothing_verified_and_no_time_are_no_division_by_zero() -> None:
    empty = run(((), stats(num_tokens=0, num_rounds=0, num_emitted=0, num_hits=0, decode_s=0.0)))
    assert empty.tokens_per_second == 0
    assert empty.acceptance_length is None
    assert empty.hit_rate is None


def test_the_first_divergence_is_the_first_of_the_first_prompt() -> None:
    any_ = stats()
    plain = run(((1, 2), any_), ((3, 4, 5), any_), ((6,), any_))
    same = run(((1, 2), any_), ((3, 4, 5), any_), ((6,), any_))
    other = run(((1, 2), any_), ((3, 9, 9), any_), ((7,), any_))
    longer = run(((1, 2, 8), any_), ((3, 4, 5), any_), ((6,), any_))
    assert first_divergence(same, plain) is None
    found = first_divergence(other, plain)
    assert found is not None
    assert (found.prompt, found.index, found.expected, found.found) == (1, 1, 4, 9)
    found = first_divergence(longer, plain)
    assert found is not None
    assert (found.prompt, found.index, found.expected, found.found) == (0, 2, None, 8)
