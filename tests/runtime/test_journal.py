"""What a stream has not done is known, and how long it has been at one thing."""

from __future__ import annotations

from engines.errors import BackendError
from runtime import journal as module
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.journal import Job, Journal, Patience
from tests.helpers.devices import fail_with


def job(log: list[int], number: int) -> Job:
    return Job(lambda: log.append(number), (), (), f"job {number}", None)


def test_what_is_left_is_what_has_not_run_in_order() -> None:
    device, journal, log = SeededDevice(lazy), Journal(), []
    stream = device.create_stream("a")
    for number in range(3):
        journal.launch(stream, job(log, number))
    stream.sync()
    assert journal.oldest is None
    device.hold(stream)
    for number in range(3, 6):
        journal.launch(stream, job(log, number))
    assert journal.oldest is not None
    assert journal.oldest.label == "job 3"
    stream.close()
    left = journal.undone()
    assert [each.label for each in left] == ["job 3", "job 4", "job 5"]
    assert journal.undone() == []
    again = device.create_stream("a")
    for each in left:
        journal.launch(again, each)
    again.sync()
    assert log == list(range(6)), "something ran twice, or never"


def test_a_job_that_failed_is_not_done_and_neither_is_what_it_kept_from_running() -> None:
    device, journal, log = SeededDevice(eager), Journal(), []
    stream = device.create_stream("a")
    journal.launch(stream, job(log, 0))
    journal.launch(stream, Job(fail_with(BackendError("gone")), (), (), "bad", None))
    journal.launch(stream, job(log, 2))
    assert [each.label for each in journal.undone()] == ["bad", "job 2"]


def test_patience_is_with_a_job_and_not_with_a_queue(monkeypatch) -> None:
    """A long queue that moves is no hang, and nothing to do is none either."""
    now = [0.0]
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    device, journal, log = SeededDevice(lazy), Journal(), []
    stream = device.create_stream("a")
    patience = Patience(10.0)
    for number in range(4):
        device.hold(stream)
        journal.launch(stream, job(log, number))
        assert not patience.is_over(journal)
        now[0] += 9.0
        assert not patience.is_over(journal)
        device.release(stream)
        stream.sync()
    now[0] += 100.0
    assert not patience.is_over(journal)
    device.hold(stream)
    journal.launch(stream, job(log, 9))
    assert not patience.is_over(journal)
    now[0] += 10.0
    assert patience.is_over(journal)
