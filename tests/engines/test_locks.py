from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from engines.locks import locked


class BusyError(Exception):
    pass


def refuse() -> None:
    raise BusyError


def test_threads_take_turns_and_the_lock_file_goes(tmp_path: Path) -> None:
    """Each holder removes the file that others wait on: a lock on a removed file must not count."""
    path = tmp_path / "lock"
    inside, most = 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(100):
            with locked(path):
                inside += 1
                most = max(most, inside)
                os.stat(path)  # lets other threads run
                inside -= 1

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert list(tmp_path.iterdir()) == []


def test_the_second_says_that_it_waits_and_an_error_releases(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    waits = threading.Event()

    def second() -> None:
        with locked(path, waits.set):
            pass

    thread = threading.Thread(target=second, daemon=True)

    def first() -> None:
        with locked(path):
            thread.start()
            assert waits.wait(30)
            raise KeyError

    with pytest.raises(KeyError):
        first()
    thread.join(30)
    assert not thread.is_alive()
    waits.clear()
    second()
    assert not waits.is_set()


def test_one_that_does_not_wait_leaves_the_holder_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        for _ in range(2):
            with pytest.raises(BusyError), locked(path, refuse):
                pytest.fail("two hold one lock")
        assert path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_ends_meanwhile_is_nobody_to_wait_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes its file between our open and our flock: a lock on that one keeps nobody out, and
    to call it held is an error for a run that is alone."""
    path = tmp_path / "lock"
    flock, num_calls = fcntl.flock, 0

    def ended(descriptor: int, operation: int) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 1:
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", ended)
    with locked(path, refuse):
        assert path.exists()
        with pytest.raises(BusyError), locked(path, refuse):
            pytest.fail("two hold one lock")
    assert list(tmp_path.iterdir()) == []


def test_no_folder_no_lock(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none" / "lock"):
        pytest.fail("held a lock that cannot exist")
