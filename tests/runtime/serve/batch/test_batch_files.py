"""Batch files: what is read, what is written, and what an interruption leaves."""

from __future__ import annotations

import fcntl
import json
from contextlib import closing
from pathlib import Path
from typing import Any, TextIO

import pytest

from engines.errors import UsageError
from runtime.serve.batch.files import Answered, Answers, Asked, read_asked, refused

BODY = {"prompt": "a"}
LINE = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": BODY}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "in.jsonl"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([""], "holds no request"),
        ([LINE, "{"], "line 2 is not JSON"),
        (["[" * 100_000], "line 1 is not JSON"),
        ([7], "custom_id"),
        ([{**LINE, "custom_id": ""}], "custom_id"),
        ([{**LINE, "custom_id": 7}], "custom_id"),
        ([LINE, "", LINE], "line 3: custom_id 'a' is line 1's"),
    ],
)
def test_lines_whose_answers_nobody_could_find_are_refused(
    lines: list[Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=words):
        read_asked(written(tmp_path, *lines))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"method": "GET"}, "POST"),
        ({"url": "/v1/embeddings"}, "/v1/chat/completions"),
        ({"url": None}, "/v1/chat/completions"),
        ({"body": "text"}, "no object"),
        ({"body": {**BODY, "stream": True}}, "stream"),
    ],
)
def test_a_line_that_cannot_be_asked_spoils_no_other(
    changed: dict[str, Any], words: str, tmp_path: Path
) -> None:
    good, bad = read_asked(written(tmp_path, LINE, {**LINE, "custom_id": "b", **changed}))
    assert good == Asked("a", "/v1/completions", BODY)
    answer = refused(bad)
    assert answer.status == 400
    assert words in answer.body["error"]["message"]


def test_separators_inside_of_a_string_end_no_line(tmp_path: Path) -> None:
    line = json.dumps({**LINE, "body": {"prompt": "a\u2028b\x85c"}}, ensure_ascii=False)
    [asked] = read_asked(written(tmp_path, line))
    assert asked.body == {"prompt": "a\u2028b\x85c"}


def asked_of(*names: str) -> list[Asked]:
    return [Asked(name, "/v1/completions", BODY) for name in names]


def answer(name: str, status: int = 200) -> Answered:
    return Answered(name, status, "req-1", {"text": name})


def names_in(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def test_answers_stand_in_the_order_of_the_requests(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    answers = Answers(path, asked_of("a", "b", "c"))
    for name in ("c", "a", "b"):
        answers.add(answer(name))
        assert not path.exists(), "a file that is not complete has the name of one that is"
    answers.finish()
    assert names_in(path) == ["a", "b", "c"]
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]
    first = json.loads(path.read_text().splitlines()[0])
    assert first["response"] == {"status_code": 200, "request_id": "req-1", "body": {"text": "a"}}
    assert first["error"] is None


def test_an_interrupted_run_goes_on_behind_what_was_answered_well(tmp_path: Path) -> None:
    path, asked = tmp_path / "out.jsonl", asked_of("a", "b", "c", "d")
    first = Answers(path, asked)
    first.add(answer("b"))
    first.add(answer("c", status=500))
    first.add(answer("d"))
    first.close()
    whole = first.partial.read_text()
    first.partial.write_text(whole[:-20])  # the last line was cut off
    second = Answers(path, asked)
    assert [each.custom_id for each in second.left] == ["a", "c", "d"]
    for each in second.left:
        second.add(answer(each.custom_id))
    second.finish()
    assert names_in(path) == ["a", "b", "c", "d"]


def test_answers_of_another_file_of_requests_are_not_taken_over(tmp_path: Path) -> None:
    first = Answers(tmp_path / "out.jsonl", asked_of("a"))
    first.add(answer("a"))
    first.close()
    changed = [Asked("a", "/v1/completions", {"prompt": "another"})]
    for others in (asked_of("b"), changed):
        with closing(Answers(tmp_path / "out.jsonl", others)) as answers:
            assert answers.num_known == 0


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        Answers(path, asked_of("a"))
    assert path.read_text() == "precious"


def test_a_run_that_ends_while_another_begins_keeps_its_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one found the partial file gone or empty, asked all again, and replaced them."""
    path = tmp_path / "out.jsonl"
    first = Answers(path, asked_of("a"))
    lock = fcntl.flock

    def end_first(file: TextIO, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        first.add(answer("a"))
        first.finish()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", end_first)
    with pytest.raises(UsageError, match="exists; name another file"):
        Answers(path, asked_of("a"))
    assert json.loads(path.read_text())["custom_id"] == "a"
    assert [each.name for each in tmp_path.iterdir()] == ["out.jsonl"]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first = Answers(path, asked_of("a"))
    with pytest.raises(UsageError, match="another run"):
        Answers(path, asked_of("a"))
    first.close()
    Answers(path, asked_of("a")).close()
