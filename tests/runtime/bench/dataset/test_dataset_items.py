"""Reading data sets: every common shape, and what cannot be read is named with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engines.errors import UsageError
from runtime.bench.dataset.items import Item, first_turn, read_items


def write(path: Path, *records: object) -> Path:
    lines = [each if isinstance(each, str) else json.dumps(each) for each in records]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "record",
    [
        {"turns": ["hello", "and then"]},
        {"prompt": "hello"},
        {"question": "hello", "answer": "no prompt"},
        {"instruction": "hello"},
        {
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hello"},
                {"role": "user", "content": "later"},
            ]
        },
        {"conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "hi"}]},
    ],
)
def test_the_first_turn_of_each_shape(record: dict) -> None:
    assert first_turn(record) == "hello"


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"turns": []},
        {"turns": [3]},
        {"prompt": None},
        {"messages": [{"role": "assistant", "content": "hi"}]},
        ["prompt"],
    ],
)
def test_what_has_no_first_turn(record: object) -> None:
    assert first_turn(record) is None


def test_the_first_of_each_category_in_the_order_of_the_file(tmp_path: Path) -> None:
    records = [
        {"category": name, "prompt": f"{name} {i}"} for i in range(3) for name in ("qa", "rag")
    ]
    path = write(tmp_path / "set.jsonl", records[0], "", *records[1:])
    assert read_items(path, 1) == [Item("qa", "qa 0", 1), Item("rag", "rag 0", 3)]
    assert len(read_items(path)) == 6


def test_without_categories_all_are_of_one(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", {"prompt": "a"}, {"prompt": "b\u2028c"})
    assert [(item.category, item.text) for item in read_items(path)] == [
        ("all", "a"),
        ("all", "b\u2028c"),
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["{"], r"line 1 is not JSON \(Expecting property name .* quotes, column 2\)"),
        (["[" * 200_000], "line 1 is not JSON that can be read"),
        (['{"prompt": "a", "n": ' + "9" * 5000 + "}"], "a number of too many digits"),
        ([{"prompt": "a"}, {"text": "b"}], 'line 2 has no text in "turns"'),
        ([{"prompt": " "}], "line 1 has no text"),
        ([{"prompt": "a", "category": 7}], "line 1: category is 7"),
        ([{"prompt": "a", "category": "a\nb"}], "line 1: category is 'a"),
        ([{"prompt": "a", "category": " "}], "line 1: category is ' '"),
        (['{"prompt": "a", "category": "\\ud800"}'], "line 1: category is"),
        ([{"prompt": "a", "category": "overall"}], "'overall' means all prompts together"),
        (['{"prompt": "a\\ud800"}'], "line 1 has half a character"),
        (["", ""], "holds no prompt"),
        ([[1]], "line 1 has no text"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, lines, expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        read_items(write(tmp_path / "set.jsonl", *lines))


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "zero.jsonl"
    path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is longer than 64 MiB"):
        read_items(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    other = tmp_path / "latin.jsonl"
    other.write_bytes(b'{"prompt": "\xe9"}')
    for path, expected in (
        (tmp_path / "absent.jsonl", "cannot read"),
        (tmp_path / "set.txt", r"not a \.jsonl file"),
        (other, "not UTF-8"),
    ):
        with pytest.raises(UsageError, match=expected):
            read_items(path)
