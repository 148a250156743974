"""Remembered measurements: what is kept, and that nothing about the file can stop a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engines.errors import UsageError
from runtime.memo import FILE, Memo


def test_values_are_kept_for_the_next_process(tmp_path: Path) -> None:
    Memo(tmp_path / "new" / "folder").put("a", 1)
    Memo(tmp_path / "new" / "folder").put("b", {"x": [0.5, None]})
    again = Memo(tmp_path / "new" / "folder")
    assert again.get("a") == 1
    assert again.get("b") == {"x": [0.5, None]}
    assert again.get("c") is None


def test_a_later_value_replaces_the_earlier_one(tmp_path: Path) -> None:
    memo = Memo(tmp_path)
    memo.put("a", 1)
    memo.put("a", 2)
    assert memo.get("a") == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b"[" * 100_000],
    ids=["empty", "cut", "list", "null", "binary", "deep"],
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    memo = Memo(tmp_path)
    assert memo.get("a") is None
    memo.put("a", 1)
    assert memo.get("a") == 1


def test_a_folder_that_cannot_be_made_costs_only_the_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memo = Memo(tmp_path / "file" / "folder")
    memo.put("a", 1)
    assert memo.get("a") is None


def test_a_write_that_fails_leaves_the_old_values_and_no_litter(tmp_path: Path) -> None:
    memo = Memo(tmp_path)
    memo.put("a", 1)
    with pytest.raises(TypeError):
        memo.put("b", object())
    assert memo.get("a") == 1
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_the_usual_place_is_the_users_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    Memo().put("a", 1)
    assert Memo(tmp_path).get("a") == 1


def test_a_user_without_a_home_is_told_which_variable_helps(monkeypatch) -> None:
    """Some containers run under a number that no account has; that was a traceback."""
    for name in ("SSD_TRT_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def no_account(_uid: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", no_account)
    with pytest.raises(UsageError, match="SSD_TRT_CACHE"):
        Memo()


def test_a_pipe_or_a_device_in_its_place_is_not_read(tmp_path: Path) -> None:
    """Reading one never ends."""
    os.mkfifo(tmp_path / FILE)
    memo = Memo(tmp_path)
    assert memo.get("a") is None
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).symlink_to("/dev/zero")
    assert memo.get("a") is None
    memo.put("a", 1)
    assert memo.get("a") == 1
