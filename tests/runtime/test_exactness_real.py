"""Losslessness on the default pair with its real weights, as it is served: int8."""

from __future__ import annotations

from functools import cache

import pytest

from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from tests.helpers.real_pair import (
    CUT,
    HIT,
    JIT,
    LOOKUP,
    MISS,
    MIXED,
    PLAINLY,
    REJECTED,
    SWITCHED,
    RoundPath,
    Text,
    Way,
    decode,
    real_bundle,
    requests,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]

BOTH = Drafter.BOTH
WAYS: dict[Way, set[RoundPath]] = {
    Way("ar"): set(),
    Way("sd"): {JIT, REJECTED, CUT},
    Way("sd", BOTH): {JIT, LOOKUP, REJECTED},
    Way("sd", Drafter.LOOKUP): {LOOKUP, REJECTED},
    Way("ssd"): {HIT, MISS, REJECTED, CUT},
    Way("ssd", BOTH): {HIT, LOOKUP, MISS, REJECTED},
    Way("ssd", fallback=Fallback.JIT, together=True): {HIT, JIT, MISS, MIXED, REJECTED},
    Way("ssd", fallback=Fallback.LOOKUP, together=True): {HIT, LOOKUP, MISS, MIXED, REJECTED},
    Way("ssd", BOTH, together=True, switches=True): {HIT, JIT, LOOKUP, MISS, MIXED, SWITCHED},
}


@cache
def plain() -> list[Text]:
    bundle = real_bundle("int8")
    return decode(bundle, PLAINLY, requests(bundle, range(24)))[0]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_gives_plain_decodings_texts(way: Way) -> None:
    """The paths guard against the easy way to be exact: never to speculate."""
    bundle = real_bundle("int8")
    texts, paths = decode(bundle, way, requests(bundle, range(24)))
    assert texts == plain()
    assert paths >= WAYS[way]


def test_the_texts_are_long_and_end_in_every_way() -> None:
    """What all ways have to agree on must be worth comparing."""
    lengths = [len(tokens) for tokens, _ in plain()]
    assert sum(lengths) > 24 * 24
    assert {reason for _, reason in plain()} == {"stop", "length"}
    assert len({tokens for tokens, _ in plain()}) > 18
