"""SamplingParams: every bad value is refused in one line that names it and the allowed range."""

from __future__ import annotations

import dataclasses
import math

import pytest

from engines.errors import UsageError
from runtime.sampling.params import SamplingParams, choice_params


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, ">= 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", 10**400, "finite"),
        ("temperature", True, "number"),
        ("temperature", "1", "number"),
        ("temperature", None, "number"),
        ("top_k", -1, ">= 0"),
        ("top_k", 1.0, "whole"),
        ("top_k", True, "whole"),
        ("top_k", None, "whole"),
        ("top_p", 0, "(0, 1]"),
        ("top_p", -0.5, "(0, 1]"),
        ("top_p", 1.0000001, "(0, 1]"),
        ("top_p", math.nan, "(0, 1]"),
        ("top_p", True, "(0, 1]"),
        ("top_p", "0.9", "(0, 1]"),
        ("seed", -1, "[0, 2**64)"),
        ("seed", 2**64, "[0, 2**64)"),
        ("seed", 1.0, "[0, 2**64)"),
        ("seed", False, "[0, 2**64)"),
        ("min_p", -0.01, "[0, 1]"),
        ("min_p", 1.01, "[0, 1]"),
        ("min_p", math.nan, "[0, 1]"),
        ("min_p", False, "[0, 1]"),
        ("min_p", [0.1], "[0, 1]"),
        ("repetition_penalty", 0, "> 0"),
        ("repetition_penalty", -1.0, "> 0"),
        ("repetition_penalty", math.inf, "> 0"),
        ("repetition_penalty", 1e-40, "1e-30 to 1e30"),
        ("presence_penalty", math.nan, "-1e30 to 1e30"),
        ("presence_penalty", "1", "-1e30 to 1e30"),
        ("frequency_penalty", 1e31, "-1e30 to 1e30"),
        ("frequency_penalty", True, "-1e30 to 1e30"),
        ("logit_bias", {-1: 1.0}, "mapping of token ids"),
        ("logit_bias", {1: math.nan}, "mapping of token ids"),
        ("logit_bias", {1: 2e30}, "mapping of token ids"),
        ("logit_bias", {"1": 1.0}, "mapping of token ids"),
        ("logit_bias", 3, "mapping of token ids"),
        ("logit_bias", None, "mapping of token ids"),
        ("logit_bias", ((1, 2.0), (1, 3.0)), "an id occurs twice"),
        ("banned_ids", [1], "tuple"),
        ("banned_ids", (1, -1), "tuple of token ids"),
        ("banned_ids", (True,), "tuple of token ids"),
        ("banned_before", -1, ">= 0"),
        ("banned_before", 1.0, "whole"),
    ],
)
def test_bad_value_is_refused_by_name_value_and_range(name, value, allowed):
    with pytest.raises(UsageError) as caught:
        SamplingParams(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name} is {value!r}"[:40])
    assert allowed in message
    assert "\n" not in message
    assert len(message) < 120


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 5e-324},
        {"temperature": 1e308},
        {"top_k": 0},
        {"top_k": 10**9},
        {"top_p": 1},
        {"top_p": 5e-324},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"min_p": 0},
        {"min_p": 1},
    ],
)
def test_the_ends_of_each_range_are_allowed(values):
    params = SamplingParams(**values)
    for name, value in values.items():
        assert getattr(params, name) == value


def test_defaults_are_greedy_and_cut_nothing():
    assert SamplingParams().is_greedy
    assert not SamplingParams(temperature=1e-300).is_greedy
    assert not SamplingParams(top_k=5, top_p=0.5, min_p=0.5).truncates, "nothing to cut when greedy"
    assert not SamplingParams(temperature=1).truncates
    for cut in ({"top_k": 1}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert SamplingParams(temperature=1, **cut).truncates


def test_values_cannot_be_changed_past_the_checks():
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().temperature = -1  # type: ignore[misc]


def test_an_engines_own_argmax_is_used_only_where_it_is_the_choice():
    """S4, S5: a sampled request that takes the engine's argmax decodes greedily, in silence."""
    assert SamplingParams().chooses_in_graph(0)
    assert not SamplingParams(temperature=1e-9).chooses_in_graph(0)
    banned = SamplingParams(banned_ids=(5,), banned_before=3)
    assert [banned.chooses_in_graph(position) for position in range(5)] == [False] * 3 + [True] * 2
    assert SamplingParams(banned_before=3).chooses_in_graph(0), "nothing is banned"
    assert SamplingParams(banned_ids=(5,)).chooses_in_graph(0), "nowhere is it banned"


def test_what_edits_logits_keeps_the_engines_own_argmax_away():
    """S8, S10: a penalty that is accepted and then passed by loops for ever."""
    for edit in (
        {"repetition_penalty": 1.3},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {3: 1}},
        {"banned_sequences": ((1, 2),)},
        {"is_constrained": True},
    ):
        params = SamplingParams(**edit)
        assert not params.chooses_in_graph(0)
        assert params.follows_text == ("logit_bias" not in edit)


def test_a_bias_is_kept_as_pairs_whatever_it_was_given_as():
    """A mapping would make the parameters unhashable, and change under them."""
    given = {7: 2, 3: -1.5}
    params = SamplingParams(logit_bias=given)
    given[3] = 9
    assert params.bias == ((3, -1.5), (7, 2.0))
    assert params == SamplingParams(logit_bias=((7, 2), (3, -1.5)))
    assert hash(params) == hash(dataclasses.replace(params))


def test_a_number_too_long_to_write_is_refused_by_name():
    """Python's own error about its digits came out."""
    with pytest.raises(UsageError, match="seed is a int of thousands of digits"):
        SamplingParams(seed=10**5000)


def test_choices_differ_by_their_seeds_alone():
    base = SamplingParams(temperature=0.5, seed=2**64 - 2, top_k=3)
    choices = choice_params(base, 4)
    assert [each.seed for each in choices] == [2**64 - 2, 2**64 - 1, 0, 1]
    assert choices[0] == base
    assert {dataclasses.replace(each, seed=0) for each in choices} == {
        dataclasses.replace(base, seed=0)
    }


@pytest.mark.parametrize("n", [0, -1, 1.0, True, None, 129, 10**30])
def test_a_number_of_choices_that_is_none_is_refused(n):
    with pytest.raises(UsageError, match=r"n is .* from 1 to 128"):
        choice_params(SamplingParams(), n)
    assert len(choice_params(SamplingParams(), 128)) == 128
