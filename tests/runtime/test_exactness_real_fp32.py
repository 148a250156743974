"""Losslessness on the default pair with its real weights, in fp32.

What int8 has not: products of floats, which a library may add up in another order for another
shape. Eight texts show it as well as more would, at a third of the time.
"""

from __future__ import annotations

from functools import cache

import pytest

from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from tests.helpers.real_pair import (
    HIT,
    JIT,
    LOOKUP,
    MISS,
    MIXED,
    PLAINLY,
    REJECTED,
    RoundPath,
    Text,
    Way,
    decode,
    real_bundle,
    requests,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

NUMBERS = (*range(4), *range(12, 16))
WAYS: dict[Way, set[RoundPath]] = {
    Way("ar"): set(),
    Way("sd", Drafter.BOTH): {JIT, LOOKUP, REJECTED},
    Way("ssd"): {HIT, MISS, REJECTED},
    Way("ssd", Drafter.BOTH): {HIT, MISS, REJECTED},
    Way("ssd", fallback=Fallback.JIT, together=True): {HIT, JIT, MISS, MIXED, REJECTED},
}


@cache
def plain() -> list[Text]:
    bundle = real_bundle("fp32")
    return decode(bundle, PLAINLY, requests(bundle, NUMBERS))[0]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_gives_plain_decodings_texts(way: Way) -> None:
    bundle = real_bundle("fp32")
    texts, paths = decode(bundle, way, requests(bundle, NUMBERS))
    assert texts == plain()
    assert paths >= WAYS[way]
    assert sum(len(tokens) for tokens, _ in texts) > 8 * 24
