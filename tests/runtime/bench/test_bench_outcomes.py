"""``bench --log-outcomes``: rounds get the verdict that is told with the round after them."""

from __future__ import annotations

from runtime.bench.outcomes import KindCounts, OutcomeFigures, Recorder
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound
from runtime.spec.plan import RoundReport, RowReport

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
        return OutcomeFigures("my log.jsonl", 1, 1, 4, 6, "jit", counts).as_text()

    assert "next:" not in text("none")
    assert "log more text" in text("none")
    assert "plan --outcomes 'my log.jsonl' --target-ms A" in text("jit")
