"""``bench host``: that it measures what it says, on few rounds."""

from __future__ import annotations

import pytest

from runtime.backends import prescribed
from runtime.bench import rounds
from runtime.bench.prescribed_pair import RANKS, PrescribedPair, SteadyTexts
from runtime.bench.rounds import RoundsPlan, measure_rounds
from runtime.device.host import HostDevice

PARTS = {
    "ar": {"host", "target verify"},
    "sd": {"host", "target verify", "draft draft", "draft follow"},
    "ssd": {"host", "target verify", "draft prepare", "draft adopt", "draft commit"},
}


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_every_part_of_a_round_is_there_and_every_round_is_counted(mode: str) -> None:
    ticks: list[int] = []
    found = measure_rounds(RoundsPlan(mode, 2, 60, 2, 4), lambda done, _: ticks.append(done))
    assert ticks == [20, 40, 60]
    # The two stretches that begin behind a look at the memory leave that one round out.
    assert found.round_us.num == 58
    assert set(found.parts_us) == PARTS[mode]
    assert set(found.alone_us) == PARTS[mode] - {"host"}
    assert all(value > 0 for value in (*found.parts_us.values(), *found.alone_us.values()))
    assert found.host_us == pytest.approx(found.round_us.median - found.engine_us)
    assert found.rest_us == pytest.approx(found.host_us - sum(found.parts_us.values()))
    assert found.budget_us is None
    assert len(found.acceptance) == len(found.hit_rate) == len(found.resident_bytes) == 3


def test_only_the_target_takes_the_time_that_a_verification_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A draft that slept would hide less, and be taken for the runtime's own work."""
    slept: list[float] = []
    monkeypatch.setattr(prescribed, "sleep", slept.append)
    monkeypatch.setattr(rounds, "sleep", lambda _: None)
    found = measure_rounds(RoundsPlan("ssd", 1, 6, 2, 4, verify_s=0.25), lambda *_: None)
    assert set(slept) == {0.25}
    # Three runs of a warm-up and some rounds; the draft makes three calls a round.
    assert len(slept) < 3 * (10 + 6 + 8)
    assert found.budget_us == 100


def test_acceptance_and_hits_follow_the_law_that_the_text_was_drawn_from() -> None:
    """A text that the draft never met, or always did, would measure another kind of round."""
    device = HostDevice()
    try:
        pair = PrescribedPair(device, "ssd", batch=4, num_draft=2, num_branches=12)
        texts = SteadyTexts(pair.scheduler, 4)
        for _ in range(600):
            texts.step()
        share = texts.take_share()
        texts.stop()
    finally:
        device.close()
    assert share.num_rounds > 400
    assert share.hit_rate is not None
    assert 0.4 < share.hit_rate < 0.8
    # After a hit 2 tokens are tried, after a miss none.
    alpha = RANKS[0]
    expected = 1 + share.hit_rate * (alpha + alpha**2)
    assert share.acceptance_length == pytest.approx(expected, abs=0.1)


def test_slots_stay_busy_when_texts_end() -> None:
    device = HostDevice()
    try:
        pair = PrescribedPair(device, "ar", batch=3, num_draft=1, num_branches=1)
        texts = SteadyTexts(pair.scheduler, 3)
        for _ in range(700):
            texts.step()
        assert pair.scheduler.num_free == 0
        share = texts.take_share()
        assert share.num_rounds > 700
        assert share.acceptance_length == 1
        assert share.hit_rate is None
        assert texts.take_share().num_rounds == 0
        texts.stop()
        assert pair.scheduler.num_free == 3
    finally:
        device.close()
