"""The struct of a kernel's arguments: what goes in, and what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from engines.errors import UsageError
from plugins.cuda.args import Args, Array, Number, Values, addresses

ARGS = Args(
    Array("values", ("float32", "float16")),
    Number("count"),
    Array("out", is_output=True),
    Number("scale", "float32"),
    Number("seed", "uint64"),
)
GOOD = {
    "values": np.zeros(3, np.float32),
    "count": -2,
    "out": np.zeros(3),
    "scale": 0.5,
    "seed": 2**64 - 1,
}


def test_the_struct_has_the_fields_in_order() -> None:
    packed = ARGS.pack(GOOD)
    assert packed.values == GOOD["values"].ctypes.data
    assert packed.out == GOOD["out"].ctypes.data
    assert (packed.count, packed.scale, packed.seed) == (-2, 0.5, 2**64 - 1)
    assert ctypes.sizeof(packed) == 40  # as C++ lays it out: 8, 4 + 4 unused, 8, 4 + 4 unused, 8


def test_an_address_and_nothing_are_pointers_too() -> None:
    packed = ARGS.pack({**GOOD, "values": 4096, "out": None})
    assert packed.values == 4096
    assert packed.out is None


BY_VALUE = Args(Values("bytes", "uint8", 3), Number("count"), Values("offsets", "int64", 2))


def test_an_array_may_lie_in_the_struct() -> None:
    """Copied when a launch is queued, and zero behind what was given."""
    given = {"bytes": np.array([7], np.uint8), "count": 1, "offsets": np.array([-5, 2**40])}
    packed = BY_VALUE.pack(given)
    given["bytes"][0] = 9
    assert list(packed.bytes) == [7, 0, 0]
    assert list(packed.offsets) == [-5, 2**40]
    assert ctypes.sizeof(packed) == 24  # 3 + 1 unused, 4, 2 * 8
    assert BY_VALUE.by_value == {"bytes", "offsets"}


@pytest.mark.parametrize("value", [np.zeros(4, np.uint8), np.zeros(1), np.zeros((1, 1), np.uint8)])
def test_more_or_other_values_than_there_is_room_for_are_refused(value: np.ndarray) -> None:
    with pytest.raises(UsageError, match=r"bytes must be uint8 \[up to 3\], found"):
        BY_VALUE.pack({"bytes": value, "count": 1, "offsets": np.zeros(2, np.int64)})


def test_blank_fields_pack_as_nothing() -> None:
    packed = ARGS.pack(ARGS.blank())
    assert (packed.values, packed.out, packed.count, packed.scale) == (None, None, 0, 0)
    assert bytes(BY_VALUE.pack(BY_VALUE.blank())) == bytes(24)


def read_only() -> np.ndarray:
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"values": np.zeros(3, np.int32)}, "values must be float32 or float16, found int32"),
        ({"values": np.zeros(6, np.float32)[::2]}, "values must be dense"),
        ({"out": read_only()}, "out is written"),
        ({"count": 2**31}, "count must be int32, found 2147483648"),
        ({"seed": -1}, "seed must be uint64, found -1"),
        ({"typo": 1}, "missing or unknown: typo"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        ARGS.pack({**GOOD, **change})


def test_a_missing_field_is_named() -> None:
    """A field left out must not become a null pointer."""
    with pytest.raises(UsageError, match="missing or unknown: seed"):
        ARGS.pack({name: value for name, value in GOOD.items() if name != "seed"})


def test_a_table_holds_addresses() -> None:
    arrays = [np.zeros(3), np.zeros(4)]
    assert addresses(arrays).tolist() == [each.ctypes.data for each in arrays]
