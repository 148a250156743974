"""``bench --log-outcomes``: rounds get the verdict that is told with the round after them."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from engines.errors import BackendError
from runtime.bench import termination
from runtime.bench.outcomes import KindCounts, Logging, OutcomeFigures, Recorder
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound, LogHeader, LogWriter, read_log
from runtime.spec.plan import RoundReport, RowReport

HEADER = LogHeader("demo", "ssd", 4, 8, 6, "jit", 0.0)
HIT, JIT, NONE = ProposalKind.HIT, ProposalKind.JIT, ProposalKind.NONE


def report(*rows: RowReport) -> RoundReport:
    return RoundReport(1, rows)


def test_each_round_gets_the_rank_of_its_own_bonus_token() -> None:
    """Reports are one outcome late; taken as they come, every rank would be its neighbour's."""
    recorder = Recorder()
    recorder.begin(0)
    recorder(report(RowReport(0, NONE, 0, 0, None)))
    recorder(report(RowReport(0, HIT, 4, 2, True, rank=0)))
    recorder(report())  # a round that the row sat out
    recorder(report(RowReport(0, JIT, 4, 4, False, rank=None)))
    recorder.begin(1)
    recorder(report(RowReport(0, NONE, 0, 0, None)))
    recorder.end()
    assert recorder.rounds == [
        LoggedRound(0, NONE, 0, 0, 0, True),
        LoggedRound(0, HIT, 4, 2, None, False),
        LoggedRound(0, JIT, 4, 4, None, None),
        LoggedRound(1, NONE, 0, 0, None, None),
    ]


def test_a_hit_without_room_for_drafts_brought_none() -> None:
    recorder = Recorder()
    recorder.begin(0)
    recorder(report(RowReport(0, HIT, 0, 0, True, rank=1)))
    recorder.end()
    assert [each.kind for each in recorder.rounds] == [NONE]


def test_rounds_in_which_the_draft_lagged_behind_are_no_verdict_on_it() -> None:
    recorder = Recorder()
    recorder.begin(0)
    recorder(report(RowReport(0, NONE, 0, 0, None, is_behind=True)))
    recorder(report(RowReport(0, HIT, 4, 1, True, rank=3)))
    recorder.end()
    assert recorder.rounds == [LoggedRound(0, HIT, 4, 1, None, None)]


def test_a_log_that_says_nothing_of_the_draft_is_not_recommended() -> None:
    def text(kind: str) -> str:
        counts = (KindCounts(kind, 1, 1.0, None),)
        return OutcomeFigures("my log.jsonl", 1, 1, None, 1, 4, 6, "jit", counts).as_text()

    assert "next:" not in text("none")
    assert "log more text" in text("none")
    assert "plan --outcomes 'my log.jsonl' --target-ms A" in text("jit")


def logged(path: Path, num_whole: int, cause: BaseException) -> Logging:
    """Prompts of two rounds each, ``cause`` after the first round of the one behind
    ``num_whole``."""
    recorder = Recorder()

    def answer(ids: Sequence[int]) -> None:
        recorder(report(RowReport(0, NONE, 0, 0, None)))
        if ids[0] == num_whole:
            raise cause
        recorder(report(RowReport(0, JIT, 4, 2, False)))

    with LogWriter(path, HEADER) as log:
        logging = Logging(log, recorder)
        logging.run([[0], [1], [2]], answer, lambda _done, _words: None)
    return logging


@pytest.mark.parametrize(
    ("cause", "ended_by"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(143), "terminated"),
        (BackendError("out of memory"), "error: prompt 3 failed: out of memory"),
    ],
)
def test_what_ends_it_early_keeps_the_whole_answers_and_no_part_of_another(
    tmp_path: Path, cause: BaseException, ended_by: str
) -> None:
    """After 11 of 12 prompts no file was there."""
    path = tmp_path / "log.jsonl"
    logging = logged(path, 2, cause)
    assert (logging.num_texts, logging.num_rounds, logging.ended_by) == (2, 4, ended_by)
    assert [each.text for each in read_log(path).rounds] == [0, 0, 1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_before_the_first_whole_answer_an_older_log_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("older")
    with pytest.raises(KeyboardInterrupt):
        logged(path, 0, KeyboardInterrupt())
    assert path.read_text() == "older"
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_while_an_answer_is_written_keeps_all_of_it(tmp_path: Path) -> None:
    """Its text counts as whole, and half of its rounds would be a shorter text's."""

    class Interrupted(LogWriter):
        num_asked = 0

        def add(self, found: LoggedRound) -> None:
            self.num_asked += 1
            if self.num_asked == 2:
                raise KeyboardInterrupt
            super().add(found)

    recorder, path = Recorder(), tmp_path / "log.jsonl"

    def answer(_ids: Sequence[int]) -> None:
        recorder(report(RowReport(0, NONE, 0, 0, None)))
        recorder(report(RowReport(0, JIT, 4, 2, False)))

    with Interrupted(path, HEADER) as log:
        logging = Logging(log, recorder)
        logging.run([[0], [1]], answer, lambda _done, _words: None)
    assert (logging.num_texts, logging.ended_by) == (1, "interrupted")
    assert [each.kind for each in read_log(path).rounds] == [NONE, JIT]


@pytest.mark.parametrize(
    ("ended_by", "code"), [("interrupted", 130), ("terminated", 143), ("error: it broke", 2)]
)
def test_a_run_cut_short_says_how_many_answers_the_log_has(ended_by: str, code: int) -> None:
    figures = OutcomeFigures("log.jsonl", 11, 12, ended_by, 40, 4, 6, "jit", ())
    expected = f"{ended_by}; the outcomes of 11 of 12 prompts are in log.jsonl"
    assert figures.cut_short == (expected, code)
    assert f"40 rounds of 11 texts (of 12: {ended_by})" in figures.as_text()


def test_sigterm_is_heard_once_and_then_as_before() -> None:
    """``timeout`` sends it twice; the second one would end the process before the log is there."""

    @termination.heard()
    def ended_twice() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)

    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with pytest.raises(SystemExit) as ended:
        ended_twice()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_host_programs_own_handler_of_sigterm_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        with termination.heard():
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
