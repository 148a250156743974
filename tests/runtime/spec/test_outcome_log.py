"""Outcome logs: what is written is read, and what is damaged is named with its line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from runtime.spec.fallback import ProposalKind
from runtime.spec.outcome_log import LoggedRound, LogHeader, LogWriter, read_log

HEADER = LogHeader("demo", "ssd", 4, 8, 6, "jit", 0.7)
HIT = LoggedRound(0, ProposalKind.HIT, 4, 2, 0, True)


@st.composite
def rounds(draw: st.DrawFn) -> LoggedRound:
    kind = draw(st.sampled_from(ProposalKind))
    drafted = 0 if kind is ProposalKind.NONE else draw(st.integers(1, HEADER.num_draft))
    return LoggedRound(
        text=draw(st.integers(0, 99)),
        kind=kind,
        num_drafted=drafted,
        accepted=draw(st.integers(0, drafted)),
        rank=draw(st.none() | st.integers(0, HEADER.num_ranks - 1)),
        hit=draw(st.none() | st.booleans()),
    )


def write(path: Path, header: LogHeader, found: list[LoggedRound]) -> Path:
    with LogWriter(path, header) as log:
        for each in found:
            log.add(each)
    return path


@given(st.lists(rounds(), min_size=1, max_size=20))
def test_rounds_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, found: list[LoggedRound]
) -> None:
    path = write(tmp_path_factory.mktemp("log") / "log.jsonl", HEADER, found)
    log = read_log(path)
    assert log.header == HEADER
    assert list(log.rounds) == found


def test_a_field_of_a_later_writer_is_let_pass(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", HEADER, [HIT])
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | {"seed": 7}) + "\n\n" + rest)
    assert read_log(path).rounds == (HIT,)


def test_only_what_a_plan_needs_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"format": "ssd-outcomes", "version": 1, "mode": "sd", "num_draft": 3, "num_ranks": 0}\n'
        '{"text": 0, "kind": "jit", "drafted": 3, "accepted": 3, "rank": null, "hit": null}\n'
    )
    log = read_log(path)
    assert log.header == LogHeader("", "sd", 3, 0)
    assert log.rounds[0].kind is ProposalKind.JIT


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"kind": "guess"}, "kind is 'guess', expected hit, jit, lookup, none"),
        ({"kind": None}, "kind is None"),
        ({"drafted": 5}, "drafted is 5, expected a whole number, 1 to 4"),
        ({"drafted": 0}, "drafted is 0"),
        ({"accepted": 3, "drafted": 2}, "accepted is 3, expected a whole number, 0 to 2"),
        ({"accepted": True}, "accepted is True"),
        ({"rank": 8}, "rank is 8, expected a whole number, 0 to 7"),
        ({"rank": 0.0}, "rank is 0.0"),
        ({"text": -1}, "text is -1, expected a whole number, at least 0"),
        ({"hit": 1}, "hit is 1, expected true, false or null"),
    ],
)
def test_a_wrong_round_is_named_with_its_line(
    tmp_path: Path, changed: dict[str, object], message: str
) -> None:
    path = write(tmp_path / "log.jsonl", HEADER, [HIT, HIT])
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | changed)
    path.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="line 3: ") as caught:
        read_log(path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format": "trace"}, "line 1 does not begin an outcome log"),
        ({"version": 2}, "line 1: version 2 of the format, expected 1"),
        ({"num_draft": 0}, "num_draft is 0, expected 1 to 256"),
        ({"num_draft": 10**9}, "num_draft is 1000000000"),
        ({"num_ranks": -1}, "num_ranks is -1"),
        ({"num_ranks": 10**6}, "num_ranks is 1000000, expected 0 to 1024"),
        ({"mode": 3}, "mode: expected str, found int"),
        ({"mode": "banana"}, "mode is 'banana', expected one of sd, ssd, auto"),
        ({"fallback": "wait"}, "fallback is 'wait', expected one of auto, zero, jit, lookup"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"version": True}, "version True of the format"),
    ],
)
def test_a_wrong_header_is_named(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    path = write(tmp_path / "log.jsonl", HEADER, [HIT])
    first, rest = path.read_text().split("\n", 1)
    path.write_text(json.dumps(json.loads(first) | changed) + "\n" + rest)
    with pytest.raises(UsageError) as caught:
        read_log(path)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["mode", "num_draft", "num_ranks"])
def test_a_missing_header_field_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "log.jsonl", HEADER, [HIT])
    first, rest = path.read_text().split("\n", 1)
    record = json.loads(first)
    del record[name]
    path.write_text(json.dumps(record) + "\n" + rest)
    with pytest.raises(UsageError, match=f"field {name} is missing"):
        read_log(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty, expected an outcome log"),
        (b"prompt\n", "line 1 is not a JSON object"),
        (b"[1]\n", "line 1 is not a JSON object"),
        (b"[" * 20_000, "line 1 is not a JSON object"),
        (b"\0" * 100_000, "line 1 is too long for an outcome log"),
        (b"\xff\xfe{\n", "is not UTF-8"),
    ],
)
def test_another_file_is_told_from_a_log(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_log(path)
    assert message in str(caught.value)
    assert "--log-outcomes" in str(caught.value)


def test_a_log_without_rounds_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no round"):
        read_log(write(tmp_path / "log.jsonl", HEADER, []))


def test_a_path_that_cannot_be_used_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read outcomes from"):
        read_log(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot write outcomes to"):
        LogWriter(tmp_path / "none" / "log.jsonl", HEADER)


def test_an_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(UsageError, match="line 1 is too long"):
        read_log(Path("/dev/zero"))


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    """json keeps the last of them: which one was meant is anybody's guess."""
    path = write(tmp_path / "log.jsonl", HEADER, [HIT])
    path.write_text(path.read_text().replace('"accepted": 2', '"accepted": 2, "accepted": 4'))
    with pytest.raises(UsageError, match="line 2: field 'accepted' is there twice"):
        read_log(path)


def test_a_rank_in_a_log_without_ranks_is_said_so(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", LogHeader("", "ssd", 4, 0), [HIT])
    with pytest.raises(UsageError, match="rank is 0, but by num_ranks 0 no ranks were noted"):
        read_log(path)


def test_an_interrupted_log_leaves_the_older_one_and_nothing_else(tmp_path: Path) -> None:
    path = write(tmp_path / "log.jsonl", HEADER, [HIT])
    before = path.read_bytes()
    with suppress(KeyboardInterrupt), LogWriter(path, HEADER) as log:
        log.add(HIT)
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with LogWriter(path, HEADER) as log:
        log.add(HIT)
        assert not path.exists()
    assert read_log(path).rounds == (HIT,)
    assert list(tmp_path.iterdir()) == [path]


def test_a_closed_log_takes_no_round(tmp_path: Path) -> None:
    log = LogWriter(tmp_path / "log.jsonl", HEADER)
    log.close()
    log.close()
    with pytest.raises(UsageError, match="is closed"):
        log.add(HIT)
