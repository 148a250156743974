"""An LLM, with real engines, whose draft fails or hangs."""

from __future__ import annotations

import pytest

from runtime.device.cores import available_cores
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.llm import LLM
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.settings import Settings
from runtime.spec.fallback import Fallback
from tests.helpers.faulty_pair import PARAMS, SOON_S, K, W
from tests.helpers.tiny_bundle import tiny_bundle


def faulty_llm(mode: str, fault: Fault, *, limit_s: float, close_timeout_s: float = 10.0) -> LLM:
    """As ``LLM.open`` makes it, on a device with a fault in it."""
    bundle, cores = tiny_bundle(max_batch=1), available_cores()
    placement = Placement(mode, cores[:1], cores[-1:])
    settings = Settings(placement, "coupled", K, W, 1, Fallback.ZERO, 1.0, None)
    pair = LoadedPair(
        bundle,
        placement,
        verify="coupled",
        num_draft=K,
        num_branches=W,
        device=FaultyDevice(HostDevice(close_timeout_s=close_timeout_s), [fault]),
        draft_timeout_s=limit_s,
    )
    return LLM(bundle, pair, settings, None)


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("hangs", [False, True], ids=["fails", "hangs"])
def test_an_llm_says_that_it_lost_its_draft_and_answers_on(hangs) -> None:
    """Real engines: the target's stream is made anew under them."""
    fault = Fault("draft", "prepare", 3, stalls=hangs)
    with faulty_llm("ar", Fault("draft", "nothing"), limit_s=1.0) as plain_llm:
        expected = plain_llm.generate([5, 6, 7], PARAMS[1], max_tokens=40).token_ids
    with faulty_llm("ssd", fault, limit_s=1.0) as llm:
        assert llm.note is None
        answer = llm.generate([5, 6, 7], PARAMS[1], max_tokens=40)
        assert answer.token_ids == expected
        assert fault.has_struck
        assert "decoding goes on without it" in answer.note
        assert llm.note == answer.note
        assert llm.generate([5, 6, 7], PARAMS[1], max_tokens=40).token_ids == expected


@pytest.mark.usefixtures("may_degrade")
def test_closing_an_llm_whose_draft_hangs_is_no_error(monkeypatch) -> None:
    """It was told once that the draft is gone; closing frees the rest."""
    monkeypatch.setattr(Fault, "release", lambda _self: None)
    fault = Fault("draft", "prepare", 3, stalls=True)
    llm = faulty_llm("ssd", fault, limit_s=SOON_S, close_timeout_s=SOON_S)
    assert len(llm.generate([5, 6, 7], max_tokens=20).token_ids) == 20
    llm.close()
    llm.close()
    monkeypatch.undo()
    fault.release()
