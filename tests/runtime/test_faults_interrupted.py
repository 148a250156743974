"""Ctrl-C at any moment of a fault: slots are free, and the pair works or says that it is lost."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType

import pytest

from engines.errors import BackendError, DeviceError
from runtime.device.api import Stream
from runtime.device.faulty import Fault, FaultyDevice
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager
from runtime.request import FinishReason
from tests.helpers.faulty_pair import check_texts, finish, open_pair, requests_of, run_all
from tests.helpers.toy_texts import interrupt


class _CtrlC:
    """Raises KeyboardInterrupt before the ``number``-th line (from 0) that functions of these names
    run, under ``sys.settrace``."""

    def __init__(self, names: Sequence[str], number: int) -> None:
        self.has_struck = False
        self._names = names
        self._left = number

    def __call__(self, frame: FrameType, event: str, _arg: object) -> Callable[..., object] | None:
        if frame.f_code.co_name not in self._names:
            return None
        if event == "line":
            self._left -= 1
            if self._left < 0:
                self.has_struck = True
                sys.settrace(None)
                raise KeyboardInterrupt
        return self


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("how", ["fails", "hangs"])
@pytest.mark.parametrize("label", ["prepare", "follow"])
def test_ctrl_c_while_the_draft_is_given_up_leaves_a_pair_that_works(label, how) -> None:
    """At any line of it: one of the streams is closed then, and not yet made anew."""
    for number in itertools.count():
        fault = Fault("draft", label, 1, stalls=how == "hangs")
        pair, _ = open_pair(SeededDevice(eager), fault)
        stroke = _CtrlC(("_give_up", "_salvage"), number)
        before = sys.gettrace()
        sys.settrace(stroke)
        try:
            with suppress(KeyboardInterrupt):
                run_all(pair)
        finally:
            sys.settrace(before)
        assert pair.scheduler.num_free == 3
        check_texts(pair, run_all(pair))
        assert pair.scheduler.note is not None
        pair.device.close()
        if not stroke.has_struck:
            assert number > 20, "it has become shorter, or has another name"
            break


@pytest.mark.parametrize(
    "error", [DeviceError("it is in the middle of its work"), KeyboardInterrupt]
)
def test_no_stream_is_made_beside_one_that_could_not_be_closed(error, monkeypatch) -> None:
    """What runs on it would write to the same caches. The pair is lost then, and says so."""
    pair, _ = open_pair(SeededDevice(eager), Fault("draft", "prepare", 1))
    stream = type(pair.device.create_stream("other"))
    close = stream.close

    def refuse(each: Stream) -> None:
        close(each)
        if each.name == "target":
            raise error

    monkeypatch.setattr(stream, "close", refuse)
    monkeypatch.setattr(FaultyDevice, "create_stream", lambda *_: pytest.fail("a second one"))
    with pytest.raises((DeviceError, KeyboardInterrupt)):
        run_all(pair)
    for _ in range(2):
        with pytest.raises(BackendError, match="open the bundle again"):
            run_all(pair)
    assert pair.scheduler.num_free == 3
    monkeypatch.undo()
    pair.device.close()


def test_ctrl_c_between_two_steps_ends_a_run_like_one_within_a_step(monkeypatch) -> None:
    """Slots stayed taken by texts that nobody waited for any more."""
    pair, _ = open_pair(SeededDevice(eager), Fault("draft", "nothing"))
    step = pair.scheduler.step

    def interrupted() -> bool:
        step()
        raise KeyboardInterrupt

    monkeypatch.setattr(pair.scheduler, "step", interrupted)
    requests = requests_of(pair)
    with pytest.raises(KeyboardInterrupt):
        pair.scheduler.run(requests)
    assert pair.scheduler.num_free == 3
    assert {each.finish_reason for each in requests} == {FinishReason.CANCELLED}
    monkeypatch.undo()
    check_texts(pair, run_all(pair))
    pair.device.close()


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("label", ["prepare", "adopt", "prompt"])
def test_ctrl_c_while_the_draft_hangs_leaves_a_pair_that_works(label) -> None:
    """Draining the streams must not wait for it for ever."""
    fault = Fault("draft", label, 1 if label == "prompt" else 3, stalls=True)
    pair, _ = open_pair(HostDevice(check=True), fault)
    for request in requests_of(pair)[1:3]:
        pair.scheduler.submit(request, interrupt)
    with pytest.raises(KeyboardInterrupt):
        finish(pair)
    assert pair.scheduler.num_free == 3
    for _ in range(2):
        check_texts(pair, run_all(pair))
    assert pair.scheduler.note is not None
    pair.device.close()
