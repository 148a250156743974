"""What the tables of the Python side share with the header and with the rest of ssd-trt."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import engines.errors
from engines.errors import BundleMissingError, SsdError, UsageError
from runtime.embed import statuses
from runtime.embed.bridge import FINISHES, STATES
from runtime.embed.inbox import State
from runtime.embed.model import MODEL_TEXTS, REQUEST_TEXTS
from runtime.embed.options import CHOICE, GRAMMARS, OPEN_OPTIONS, read_open_options
from runtime.embed.statuses import INTERNAL, STATUSES, status_of
from runtime.llm import LLM
from runtime.request import FinishReason

FOLDER = Path(statuses.__file__).parent
HEADER = (FOLDER / "include" / "ssd.h").read_text()
TYPES = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.DOTALL)


def numbers(enum: str) -> dict[str, int]:
    """An enum of the header."""
    [body] = re.findall(rf"typedef enum {enum} {{(.*?)}}", TYPES, re.DOTALL)
    return {name: int(number) for name, number in re.findall(r"(SSD_\w+) = (\d+)", body)}


def test_every_error_of_the_tree_has_a_status_of_the_header() -> None:
    """One without would be told as a fault of ssd-trt."""
    kinds = [
        each
        for each in vars(engines.errors).values()
        if inspect.isclass(each) and issubclass(each, SsdError) and each is not SsdError
    ]
    assert len(kinds) > 10
    for kind in kinds:
        error = kind("a", "b", "c") if kind.__name__ == "MissingDependencyError" else kind("why")
        name, line = status_of(error)
        assert name in numbers("ssd_status")
        assert name != INTERNAL
        assert line
    assert {*STATUSES.values(), INTERNAL} < {*numbers("ssd_status")}


def test_a_fault_is_told_as_one_in_a_line() -> None:
    assert status_of(ZeroDivisionError("a\nb\x1b"))[0] == INTERNAL
    assert "\n" not in status_of(UsageError("a\nb\x1b"))[1]
    assert status_of(BundleMissingError("x"))[0] == "SSD_ERROR_BUNDLE_MISSING"
    assert status_of(FileNotFoundError(2, "gone", "f"))[0] == "SSD_ERROR_SYSTEM"


def test_the_names_of_the_statuses_stand_in_the_order_of_their_numbers() -> None:
    source = (FOLDER / "csrc" / "ssd.c").read_text()
    [table] = re.findall(r"const names\[\] = {(.*?)};", source, re.DOTALL)
    in_order = sorted(numbers("ssd_status").items(), key=lambda item: item[1])
    assert re.findall(r'"(\w+)"', table) == [name for name, _ in in_order]
    assert [number for _, number in in_order] == [*range(len(in_order))]


@pytest.mark.parametrize(
    ("enum", "names"),
    [
        ("ssd_state", STATES.values()),
        ("ssd_finish_reason", FINISHES.values()),
        ("ssd_model_text_kind", MODEL_TEXTS),
        ("ssd_request_text_kind", REQUEST_TEXTS),
        ("ssd_grammar_kind", ["SSD_GRAMMAR_NONE", *GRAMMARS, CHOICE]),
    ],
)
def test_every_name_of_an_enum_is_served(enum: str, names: list[str]) -> None:
    assert {*numbers(enum)} == {*names}


def test_every_ending_and_state_has_a_number() -> None:
    assert {*FINISHES} == {*FinishReason}
    assert {*STATES} == {*State}


def test_the_options_of_opening_are_those_of_python() -> None:
    """What takes a function or a fake cannot be said in JSON; a new option has to be decided on."""
    of_python = {
        name
        for name, each in inspect.signature(LLM.open).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert {*OPEN_OPTIONS} == of_python - {"trace", "on_round", "tell", "announce", "hardware"}
    for name in OPEN_OPTIONS:
        assert name in HEADER


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{" * 100_000, "not JSON"),
        ("3", "JSON object"),
        ('{"hardware": 1}', "unknown option 'hardware'"),
        ('{"adaptive_length": "yes"}', "true or false"),
        ('{"draft_sm_share": "half"}', "expected a number"),
        ('{"draft_sm_share": true}', "expected a number"),
        ('{"saguaro": Infinity}', "saguaro"),
    ],
)
def test_options_that_are_none_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_open_options(text)


def test_options_are_handed_on_as_they_are() -> None:
    assert read_open_options('{"mode": "sd", "num_draft": 2}') == {"mode": "sd", "num_draft": 2}
