"""Replicas of one machine keep to cores of their own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime.serve.ray import cores
from runtime.serve.ray.cores import claim


@pytest.fixture(autouse=True)
def _let_go(monkeypatch: pytest.MonkeyPatch) -> object:
    held: list[int] = []
    monkeypatch.setattr(cores, "_held", held)
    yield
    for each in held:
        os.close(each)


def test_shares_are_disjoint_until_none_is_left(tmp_path: Path) -> None:
    shares = [claim(range(5), 2, tmp_path) for _ in range(3)]
    assert shares == [(0, 1), (2, 3), None]


def test_a_share_is_free_again_once_its_process_has_ended(tmp_path: Path) -> None:
    assert claim([4, 6], 2, tmp_path) == (4, 6)
    assert claim([4, 6], 2, tmp_path) is None
    while cores._held:
        os.close(cores._held.pop())  # as the system does
    assert claim([4, 6], 2, tmp_path) == (4, 6)


def test_a_core_of_another_shares_is_left_alone(tmp_path: Path) -> None:
    """Shares of two fleets need not have one size; what was half taken is given back."""
    assert claim([1, 2], 2, tmp_path) == (1, 2)
    assert claim([0, 1, 2, 3], 2, tmp_path) is None
    assert claim([0], 1, tmp_path) == (0,)
