"""The user's own prompts: how their files are read, and which of them have been answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from export.checkpoint.api import open_checkpoint
from export.distill import shards, write
from export.distill.chat import Frame, frame_of
from export.distill.corpus import Sample
from export.distill.llama import Llama
from export.distill.prompts import Question, read_prompts, read_questions
from export.distill.stop import Stop
from export.distill.text import load_target
from tests.helpers.checkpoints import make_llama


@pytest.mark.parametrize("inside", ["\u2028", "\x85", "\f"])
def test_only_line_feeds_end_a_prompt(tmp_path: Path, inside: str) -> None:
    """``splitlines`` also breaks at these: one prompt became two halves, one object no JSON."""
    text = f"one{inside}two"
    (tmp_path / "p.txt").write_bytes(f"{text}\r\nthree\n".encode())
    assert read_prompts(tmp_path / "p.txt") == [text, "three"]
    lines = [{"prompt": text, "category": "c", "turns": [text]}]
    (tmp_path / "p.jsonl").write_bytes(as_lines(lines, "\r\n"))
    if inside == "\f":  # JSON wants it escaped
        return
    assert read_prompts(tmp_path / "p.jsonl") == [text]
    assert read_questions(tmp_path / "p.jsonl") == [Question("c", (text,))]


def as_lines(values: Sequence[object], end: str = "\n") -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + end for value in values).encode()


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    (tmp_path / "p.txt").write_bytes(mark + b"one\n")
    (tmp_path / "p.jsonl").write_bytes(mark + b'{"prompt": "one"}\n')
    assert read_prompts(tmp_path / "p.txt") == read_prompts(tmp_path / "p.jsonl") == ["one"]


def test_half_a_surrogate_pair_is_refused_where_it_stands(tmp_path: Path) -> None:
    """It stopped the run when its turn came, hours later, and nobody knew which prompt it was."""
    path = tmp_path / "p.jsonl"
    fine = {"prompt": "\U0001f600", "category": "c", "turns": ["\U0001f600"]}
    for key, value in (("prompt", "a\ud83d"), ("category", "\ude00"), ("turns", ["b", "\ud83d"])):
        lines = [json.dumps(fine), "", json.dumps(fine | {key: value})]
        path.write_text("\n".join(lines))
        read = read_prompts if key == "prompt" else read_questions
        with pytest.raises(UsageError, match=r"p\.jsonl:3: \\u(d83d|de00) is half") as caught:
            read(path)
        assert str(caught.value).isprintable()


def test_deeply_nested_json_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "category": "c", "turns": ["a"]}\n' + "[" * 100_000)
    for read in (read_prompts, read_questions):
        with pytest.raises(UsageError, match=r"p\.jsonl:2: .*nested too deeply"):
            read(path)


def answer(folder: Path, name: str, *prompts: str) -> None:
    notes = shards.Notes(1.0, tuple(map(shards.digest, prompts)))
    shards.write(folder, name, [Sample(np.array([1, 2]), 1, 0.0)], notes)


def test_prompts_are_known_by_their_text_whatever_file_they_stand_in(tmp_path: Path) -> None:
    """Known by their places, none of another file's prompts were answered."""
    answer(tmp_path, "written-00000", "one", "two")
    answer(tmp_path, "written-00001", "three", "two")
    assert write.unanswered(tmp_path, ["four", "three", "two"]) == ["four"]
    assert write.unanswered(tmp_path, ["one", "one", "two", "two"]) == ["one"]


def test_shards_that_name_prompts_by_place_answer_none(tmp_path: Path) -> None:
    answer(tmp_path, "written-00000")
    path = tmp_path / "written-00000.npz"
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive if name != "answered"}
    np.savez(path, prompts=np.array([0]), **arrays)
    assert shards.notes(tmp_path, "written-00000") == shards.Notes(1.0)
    assert write.unanswered(tmp_path, ["one"]) == ["one"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Llama, Frame]:
    """A target that writes answers of at most 12 tokens, four at a time."""
    monkeypatch.setattr("export.distill.write.NUM_ROWS", {"cpu": 4})
    monkeypatch.setattr("export.distill.author.ANSWER_TOKENS", 12)
    checkpoint = open_checkpoint(make_llama(tmp_path / "m"))
    return load_target(checkpoint), frame_of(checkpoint)


def write_for(
    seconds: float, model: tuple[Llama, Frame], folder: Path, prompts: Sequence[str]
) -> write.PromptCount:
    """The clock ticks whenever it is read."""
    ticks = iter(range(10**9))
    return write.write_text(
        *model, folder, seconds=seconds, seed=5, prompts=prompts, answer_tokens=12,
        keep_states=False, stop=Stop(), clock=lambda: float(next(ticks)),
    )  # fmt: skip


@pytest.mark.torch
def test_prompts_that_are_left_out_are_counted_and_told(
    tmp_path: Path, model: tuple[Llama, Frame], capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = ["hello", "a b c " * 400, *(f"question {n}" for n in range(60))]
    folder = tmp_path / "text"
    first = write_for(20.0, model, folder, prompts)
    assert 0 < first.num_answered < 61
    assert first.num_answered + first.num_too_long + first.num_not_reached == 62
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"answered {first.num_answered} of 62 prompts; ")
    assert f"not reached in the time: {first.num_not_reached}" in line

    second = write_for(write.seconds_spent(folder) + 1000.0, model, folder, prompts)
    assert second == write.PromptCount(62, num_answered=61, num_too_long=1, max_len=512)
    assert capsys.readouterr().err == (
        "answered 61 of 62 prompts; no room for an answer in the 512 tokens of a row: 1\n"
    )
    third = write_for(write.seconds_spent(folder) + 10.0, model, folder, ["question 7", "hello"])
    assert third.num_answered == 2
    assert capsys.readouterr().err == ""
    names = shards.names(folder, write.PREFIX)
    answered = [each for name in names for each in shards.notes(folder, name).answered]
    assert len(answered) == len(set(answered)) == 61


@pytest.mark.torch
def test_an_error_in_the_writing_loses_no_answer(
    tmp_path: Path, model: tuple[Llama, Frame]
) -> None:
    target, frame = model

    seen = []

    def encode(text: str) -> list[int]:
        seen.extend(each for each in prompts if each in text)
        if len(seen) == len(prompts):
            raise RuntimeError("no ids")
        return frame.encode(text)

    prompts = [f"prompt {n:02}" for n in range(13)]
    poisoned = target, replace(frame, encode=encode)
    with pytest.raises(RuntimeError, match="no ids"):
        write_for(1000.0, poisoned, tmp_path / "text", prompts)
    left = write.unanswered(tmp_path / "text", prompts)
    assert 1 <= len(left) <= 5  # at most a batch of rows and the poison
    assert seen[-1] in left


@pytest.mark.torch
def test_writing_goes_on_beside_the_shards_that_are_left(
    tmp_path: Path, model: tuple[Llama, Frame]
) -> None:
    """A damaged shard is removed by hand; numbered by their count, the next replaced the last."""
    for name in ("written-00000", "written-00002"):
        answer(tmp_path / "text", name, name)
    write_for(20.0, model, tmp_path / "text", ["hello"])
    assert write.unanswered(tmp_path / "text", ["written-00002", "hello"]) == []
