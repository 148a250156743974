"""Texts of a few dozen tokens behind prompts of any length: bets are small, and saved for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, pairwise, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.spec.controller import Choices, Controller
from runtime.spec.controller.choices import longest_round_s
from runtime.spec.controller.credit import NUM_ROUNDS, SHARE
from runtime.spec.controller.reading import HOPE, LEAST_TOKENS, Reading
from runtime.spec.cost import ByTokens, Grid, PairTimes, laws_of_acceptance
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.plan import Outlook
from tests.helpers.scripted_pair import Ride, ScriptedPair

# The default pair on two cores; the draft reads 64 tokens in the time of a plain step.
CORES = PairTimes.apart(
    ByTokens((1, 2, 3), (0.0075, 0.0086, 0.0094)),
    ByTokens((1, 12, 64), (0.001, 0.003, 0.008)),
    3e-4,
)
SD, BOTH = Choices(("sd",), 2), Choices(("sd", "ssd"), 2, 12, tuple(Fallback))


def controller(prior: float, choices: Choices = SD, times: PairTimes = CORES) -> Controller:
    return Controller(times, laws_of_acceptance(prior), choices)


def reading(times: PairTimes = CORES, **others) -> dict:
    """A pair whose draft slows the target down by a step for each 64 tokens that it reads."""
    return {"times": times, "slow_behind": 2.0, **others}


def categories(ride: Ride, num_tokens: int) -> list[float]:
    """Against plain decoding, of one stretch of so many tokens after the other."""
    found, first = [], 0
    for last in range(len(ride.tokens)):
        if sum(ride.tokens[first : last + 1]) >= num_tokens:
            found.append(ride.against_plain(first, last + 1))
            first = last + 1
    return found


@pytest.mark.parametrize("prior", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("accept", [0.0, 0.1])
@pytest.mark.parametrize("choices", [SD, BOTH])
@pytest.mark.parametrize("prompts", [(40,), (100,), (700,), (80, 90, 700, 40, 75, 650)])
def test_no_category_of_short_answers_loses_three_percent(prior, accept, choices, prompts) -> None:
    """Four answers of 64 tokens each, one category after the other, with a draft that is no use: a
    trial behind a prompt cost 4 % of such a text, and what the draft read was not counted."""
    texts = ((prompt, 64) for prompt in cycle(prompts))
    pair = ScriptedPair(**reading(accept=lambda _: accept, hit=lambda _: accept, texts=texts))
    ride = pair.run(controller(prior, choices), 3000)
    found = categories(ride, 4 * 64)
    assert len(found) > 8
    assert min(found) >= 0.97


@pytest.mark.parametrize("accept", [0.05, 0.2, 0.3])
@pytest.mark.parametrize(
    "choices", [SD, Choices(("sd",), 4, drafters=(Drafter.BOTH, Drafter.LOOKUP))]
)
def test_prompts_of_any_length_by_turns_lose_no_three_percent(accept, choices) -> None:
    """Behind long prompts each call takes 1.75 times as long. What is left of such times when short
    ones follow made drafts look like gains: 6 % were lost."""
    lengths: list[int] = []

    def texts() -> Iterator[tuple[int, int]]:
        for prompt in cycle([*repeat(60, 4), *repeat(700, 4)]):
            lengths.append(prompt)
            yield prompt, 64

    def span(_: int) -> tuple[int, float]:
        return (1024, 1.75) if lengths[-1] > 500 else (128, 1.0)

    pair = ScriptedPair(
        **reading(accept=lambda _: accept, hit=lambda _: accept, texts=texts(), span=span)
    )
    ride = pair.run(controller(0.33, choices), 3000)
    found = categories(ride, 4 * 64)
    assert len(found) > 10
    assert min(found) >= 0.97


def test_a_draft_that_is_right_is_found_on_short_answers_too() -> None:
    pair = ScriptedPair(**reading(accept=lambda _: 0.85, texts=repeat((60, 64))))
    ride = pair.run(controller(0.05), 2500)
    late = ride.modes[-500:]
    assert late.count("sd") > 400
    assert ride.against_plain(2000) > 1.3


def test_what_an_answer_cannot_repay_is_never_read() -> None:
    """Reading 900 tokens costs 14 steps, of an answer of 24."""
    pair = ScriptedPair(**reading(accept=lambda _: 1.0, texts=repeat((900, 24))))
    ride = pair.run(controller(0.5), 1500)
    assert pair.num_read == 0
    assert set(ride.modes) == {"ar"}


def test_a_long_answer_behind_a_long_prompt_is_worth_reading() -> None:
    pair = ScriptedPair(**reading(accept=lambda _: 0.9, texts=repeat((700, 900))))
    ride = pair.run(controller(0.05), 6000)
    assert ride.modes[-500:].count("sd") > 450


def test_a_text_too_short_is_put_aside_and_the_note_says_so() -> None:
    """Once speculation pays it was taken up for every text, whatever the draft had to read."""
    texts = iter([*repeat((30, 300), 8), (900, 8), (30, 300)])
    pair = ScriptedPair(**reading(accept=lambda _: 0.9, texts=texts))
    policy = controller(0.9)
    notes: list[str] = []
    for _ in range(1000):
        pair.run(policy, 1)
        if not notes or notes[-1] != policy.note:
            notes.append(policy.note)
    aside = [
        number for number, note in enumerate(notes) if "for what the draft has to read" in note
    ]
    assert aside
    assert notes[aside[0]].startswith("auto runs ar (too little to come")
    assert "this text repays what the draft has to read" in notes[aside[0] + 1]
    assert notes[aside[0] + 1].startswith("auto runs sd K")


def test_nothing_is_put_aside_for_good() -> None:
    """Nobody looked at the draft any more while texts were short, whatever had changed."""
    texts = iter([*repeat((30, 300), 4), *repeat((900, 8), 200)])
    pair = ScriptedPair(**reading(accept=lambda _: 0.9, texts=texts))
    policy = controller(0.9)
    notes = set()
    for _ in range(1600):
        pair.run(policy, 1)
        notes.add(policy.note.partition(" (")[2].partition(";")[0])
    assert "the draft has rested for long" in notes


def test_a_trial_goes_on_in_the_next_text() -> None:
    """Texts of three rounds each never let a trial come to its end."""
    pair = ScriptedPair(CORES, lambda _: 0.9, texts=repeat((2, 6)), slow_behind=1.1)
    ride = pair.run(controller(0.3), 2500)
    assert ride.modes[-300:].count("sd") > 200


def test_a_trial_that_has_just_begun_is_put_off_where_a_long_prompt_comes_between() -> None:
    texts = [*repeat((20, 19), 1), *repeat((900, 40), 1000)]
    pair = ScriptedPair(**reading(accept=lambda _: 0.0, texts=texts))
    ride = pair.run(controller(0.3), 2000)
    assert pair.num_read < 200
    assert ride.against_plain() > 0.99


@given(
    verify=st.floats(0.1, 2.0),
    draft=st.floats(0.02, 1.5),
    slow_behind=st.floats(1.0, 3.0),
    phases=st.lists(st.tuples(st.integers(1, 400), st.sampled_from([0.0, 0.3, 0.7, 1.0]))),
    texts=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 300)), min_size=1, max_size=12),
    prior=st.floats(0.02, 0.98),
    choices=st.sampled_from(
        [SD, BOTH, Choices(("sd",), 2, drafters=(Drafter.BOTH, Drafter.LOOKUP))]
    ),
    match=st.integers(0, 16),
    copied=st.floats(0.0, 1.0),
    lag=st.integers(0, 2),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_stretch_keeps_the_bound_for_any_law_times_and_lengths(
    verify, draft, slow_behind, phases, texts, prior, choices, match, copied, lag, seed
) -> None:
    """All but a plain step may have been measured wrongly, what the draft reads included."""
    plain_s = CORES.target.seconds(1, 1)
    true = PairTimes.apart(
        Grid((1,), (1, 3), ((plain_s, plain_s * (1 + verify)),)), ByTokens((1,), (plain_s * draft,))
    )
    turns = [rate for length, rate in phases for _ in range(length)] or [0.0]
    pair = ScriptedPair(
        true,
        lambda number: turns[number % len(turns)],
        lambda number: turns[number % len(turns)],
        lag=lag,
        slow_behind=slow_behind,
        texts=cycle(texts),
        match=lambda _: match,
        copied=copied,
        seed=seed,
    )
    ride = pair.run(controller(prior, choices), 600)
    losses_s = [
        took - tokens * ride.plain_s for took, tokens in zip(ride.seconds, ride.tokens, strict=True)
    ]
    plans = [*choices.plans(), *filter(None, [choices.lookup(0.0)])]
    worst_s = max(longest_round_s(times, 1, plan) for times in (true, CORES) for plan in plans)
    most_read = max(num_prompt + num_left for num_prompt, num_left in texts)
    saved_s = HOPE * max(num_left for _, num_left in texts) * 2 * plain_s
    read_s = (most_read // 64 + 1) * (slow_behind - 1) * ride.plain_s
    for first, last in pairwise(range(0, 601, 50)):
        for end in (last, 600):
            plain_seconds = sum(ride.tokens[first:end]) * ride.plain_s
            allowed_s = SHARE * plain_seconds + NUM_ROUNDS * worst_s + saved_s
            assert sum(losses_s[first:end]) <= allowed_s + (1 + lag) * worst_s + read_s


# --- what reading costs ---


def test_reading_costs_what_wide_calls_take_until_it_was_seen() -> None:
    found = Reading(CORES)
    assert found.seconds(640) == pytest.approx(0.080)
    assert found.seconds(1) == found.seconds(LEAST_TOKENS) > 0.0
    assert found.seconds(0) == 0.0


def test_reading_that_costs_more_is_saved_for_next_time() -> None:
    """A trial was over before it came to its verdict, time after time."""
    found = Reading(CORES)
    for _ in range(8):
        found.begins(640)
        found.lost(0.100)
        found.lost(0.060)
        found.ends()
    assert found.seconds(640) == pytest.approx(0.160, rel=0.01)


def test_reading_on_a_device_of_its_own_becomes_nearly_free() -> None:
    found = Reading(CORES)
    for _ in range(10):
        found.begins(640)
        found.ends()
    assert found.seconds(640) <= 0.080 / 8 * 1.001


def test_reading_that_was_broken_off_teaches_nothing() -> None:
    found = Reading(CORES)
    found.begins(640)
    found.breaks_off()
    found.ends()
    assert found.seconds(640) == pytest.approx(0.080)


def test_texts_are_expected_to_be_as_long_as_those_before() -> None:
    """A budget of a thousand tokens made any prompt look worth reading."""
    found = Reading(CORES)
    found.text_begins()
    assert found.left(Outlook(1000), 1) == 1000
    for _ in range(30):
        found.emitted(50)
        found.text_begins()
    assert found.left(Outlook(1000), 1) == pytest.approx(50, rel=0.05)
    assert found.left(Outlook(1000), 4) == pytest.approx(200, rel=0.05)
    assert found.left(Outlook(20), 1) == 20
