"""Pairs on their streams: limits below the built ones, and the remembered probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import BackendError
from runtime import loader
from runtime.loader import LoadedPair
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.workers.probe import Invariance
from tests.helpers.tiny_bundle import tiny_bundle


def load(mode: str = "ar", memo: Memo | None = None, **options) -> LoadedPair:
    settings = {"verify": "coupled", "num_draft": 4, "num_branches": 6, **options}
    bundle = tiny_bundle(max_batch=1)
    return LoadedPair(bundle, Placement(mode, (0,), (0,)), memo=memo, **settings)


def tokens_of(pair: LoadedPair) -> list[int]:
    params = SamplingParams(temperature=1.0, seed=4)
    request = Request([5, 6, 7], params, 60, frozenset(), 160)
    try:
        pair.decoder.run([request])
    finally:
        pair.close()
    return request.generated


@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize(("num_draft", "num_branches"), [(1, 1), (2, 5), (4, 3), (3, 6)])
def test_k_and_w_below_the_built_ones_give_the_same_tokens(mode, num_draft, num_branches) -> None:
    """The scratch rows keep the built stride."""
    expected = tokens_of(load())
    assert tokens_of(load(mode, num_draft=num_draft, num_branches=num_branches)) == expected


@pytest.fixture
def probes(monkeypatch) -> list[int]:
    """Counts the probes; each says that single tokens round differently."""
    asked: list[int] = []

    def probe(_session, num_tokens: int) -> Invariance:
        asked.append(num_tokens)
        return Invariance(min_tokens=2)

    monkeypatch.setattr(loader, "probe_invariance", probe)
    return asked


def test_the_probe_is_asked_once_a_number_of_tokens(tmp_path: Path, probes) -> None:
    for num_draft in (4, 4, 2, 4):
        pair = load(memo=Memo(tmp_path), num_draft=num_draft)
        assert pair.target.min_tokens == 2
        pair.close()
    assert probes == [5, 3]


@pytest.mark.parametrize("change", ["engine", "threads"])
def test_another_engine_or_thread_count_is_probed_anew(
    tmp_path: Path, probes, monkeypatch, change
) -> None:
    load(memo=Memo(tmp_path)).close()
    if change == "engine":
        monkeypatch.setattr(loader, "runtime_identity", lambda: "another version")
        load(memo=Memo(tmp_path)).close()
    else:
        placement = Placement("ar", (0, 0), ())
        LoadedPair(
            tiny_bundle(max_batch=1),
            placement,
            verify="coupled",
            num_draft=4,
            num_branches=6,
            memo=Memo(tmp_path),
        ).close()
    assert len(probes) == 2


@pytest.mark.parametrize("damage", ["2", 0, 3, None, [1]])
def test_a_remembered_answer_that_is_none_is_asked_again(tmp_path: Path, probes, damage) -> None:
    load(memo=Memo(tmp_path)).close()
    (key,) = Memo(tmp_path)._read()
    Memo(tmp_path).put(key, damage)
    load(memo=Memo(tmp_path)).close()
    assert len(probes) == 2


def test_a_refusal_is_not_remembered_and_leaves_no_threads(tmp_path: Path, monkeypatch) -> None:
    def refuse(_session, _num_tokens: int) -> Invariance:
        raise BackendError("rows depend on each other")

    monkeypatch.setattr(loader, "probe_invariance", refuse)
    for _ in range(2):
        with pytest.raises(BackendError, match="depend on each other"):
            load(memo=Memo(tmp_path))
    assert Memo(tmp_path)._read() == {}


def test_closing_twice_is_closing_once() -> None:
    pair = load("ssd")
    pair.close()
    pair.close()
