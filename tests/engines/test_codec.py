from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.codec import DecodeError, decode, encode


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    sizes: tuple[int | str, ...]
    share: float

    def __post_init__(self) -> None:
        if self.share < 0:
            raise ValueError("share is negative")


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    flag: bool
    colour: Colour
    inner: Inner
    perhaps: str | None
    texts: dict[str, str]


GOOD = {
    "name": "n",
    "flag": True,
    "colour": "red",
    "inner": {"sizes": [1, "T"], "share": 0.5},
    "perhaps": None,
    "texts": {"a": "b"},
}


@given(
    name=st.text(),
    flag=st.booleans(),
    sizes=st.lists(st.integers() | st.text()),
    share=st.floats(0, 1e9),
    perhaps=st.none() | st.text(),
    texts=st.dictionaries(st.text(), st.text()),
)
def test_what_is_encoded_comes_back_through_json(
    name: str,
    flag: bool,
    sizes: list[int | str],
    share: float,
    perhaps: str | None,
    texts: dict[str, str],
) -> None:
    value = Outer(name, flag, Colour.RED, Inner(tuple(sizes), share), perhaps, texts)
    assert decode(Outer, json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 3}, "Outer.name: expected str, found int"),
        ({"name": None}, "Outer.name: expected str, found null"),
        ({"flag": 1}, "Outer.flag: expected bool, found int"),
        ({"colour": "blue"}, "Outer.colour: unknown value 'blue'"),
        ({"colour": []}, "Outer.colour: unknown value"),
        ({"inner": []}, "Outer.inner: expected an object, found list"),
        ({"inner": {"sizes": "ab", "share": 1}}, "Outer.inner.sizes: expected a list"),
        ({"inner": {"sizes": [1, True], "share": 1}}, r"Outer.inner.sizes\[1\]: expected"),
        ({"inner": {"sizes": [], "share": "1"}}, "Outer.inner.share: expected float, found str"),
        ({"inner": {"sizes": [], "share": -1.0}}, "Outer.inner: share is negative"),
        ({"perhaps": 4}, "Outer.perhaps: expected str, found int"),
        ({"texts": {"a": 1}}, "Outer.texts.a: expected str, found int"),
        ({"more": 1}, "Outer: unknown field more"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_field(
    change: dict[str, object], words: str
) -> None:
    with pytest.raises(DecodeError, match=words):
        decode(Outer, {**GOOD, **change})


def test_a_missing_field_is_named() -> None:
    with pytest.raises(DecodeError, match="Outer: field flag is missing"):
        decode(Outer, {name: value for name, value in GOOD.items() if name != "flag"})


def test_a_whole_number_stands_for_a_float_but_not_the_other_way_round() -> None:
    assert decode(Inner, {"sizes": [], "share": 1}).share == 1.0
    with pytest.raises(DecodeError, match="sizes"):
        decode(Inner, {"sizes": [1.0], "share": 1})


def test_a_number_beyond_a_float_is_an_error_not_a_crash() -> None:
    with pytest.raises(DecodeError, match="share: 401 digits"):
        decode(Inner, {"sizes": [], "share": 10**400})
