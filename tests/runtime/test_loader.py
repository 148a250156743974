"""Pairs on their streams: limits below the built ones, and the remembered probe."""

from __future__ import annotations

from pathlib import Path

import pytest

from engines.errors import BackendError, CapacityError, DeviceError, UsageError
from runtime.device.host import HostDevice
from runtime.loader import LoadedPair
from runtime.loading import host, probing
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback
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
        pair.scheduler.run([request])
    finally:
        pair.close()
    return request.generated


@pytest.mark.parametrize("mode", ["sd", "ssd"])
@pytest.mark.parametrize(("num_draft", "num_branches"), [(1, 1), (2, 5), (4, 3), (3, 6)])
def test_k_and_w_below_the_built_ones_give_the_same_tokens(mode, num_draft, num_branches) -> None:
    """The scratch rows keep the built stride."""
    expected = tokens_of(load())
    assert tokens_of(load(mode, num_draft=num_draft, num_branches=num_branches)) == expected


@pytest.mark.parametrize("fallback", Fallback)
def test_every_fallback_gives_the_same_tokens(fallback) -> None:
    assert tokens_of(load("ssd", fallback=fallback)) == tokens_of(load())


def test_k_and_w_above_the_built_ones_are_refused_at_load() -> None:
    """G11, E14: an engine built for fewer drafts must not find out in the middle of a text."""
    with pytest.raises(CapacityError, match=r"built for 4.*--num-draft 8"):
        load("ssd", num_draft=8)
    with pytest.raises(CapacityError, match=r"built for 6.*--max-branches 7"):
        load("ssd", num_branches=7)


def test_slots_are_allocated_for_as_many_texts_as_are_asked_for() -> None:
    bundle = tiny_bundle(max_batch=3)
    sizes = []
    for max_batch in (1, 3, None):
        pair = LoadedPair(
            bundle,
            Placement("ssd", (0,), (0,)),
            verify="coupled",
            num_draft=4,
            num_branches=6,
            max_batch=max_batch,
        )
        sizes.append((pair.scheduler.num_free, pair.draft_session.kv_buffer.nbytes))
        pair.close()
    assert [size[0] for size in sizes] == [1, 3, 3]
    assert sizes[1][1] == sizes[2][1] == 3 * sizes[0][1]


def test_the_device_that_is_given_is_used_and_closed() -> None:
    device = HostDevice(check=True)
    pair = LoadedPair(
        tiny_bundle(max_batch=1),
        Placement("ssd", (0,), (0,)),
        verify="coupled",
        num_draft=4,
        num_branches=6,
        device=device,
    )
    assert pair.device is device
    pair.close()
    with pytest.raises(DeviceError, match="closed"):
        device.create_stream("late")


def test_saguaro_reaches_the_ratio_rule_and_is_refused_elsewhere() -> None:
    pair = load("ssd", verify="ratio", saguaro=0.25)
    assert pair.draft.rule.saguaro == 0.25
    pair.close()
    with pytest.raises(UsageError, match="--verify ratio"):
        load("ssd", saguaro=0.25)


@pytest.fixture
def probes(monkeypatch) -> list[int]:
    """Counts the probes; each says that single tokens round differently."""
    asked: list[int] = []

    def probe(_session, num_tokens: int, _num_slots: int) -> Invariance:
        asked.append(num_tokens)
        return Invariance(min_tokens=2)

    monkeypatch.setattr(probing, "probe_invariance", probe)
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
        monkeypatch.setattr(host, "runtime_identity", lambda: "another version")
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
def test_a_remembered_answer_that_is_none_is_asked_again(
    tmp_path: Path, probes, monkeypatch, damage
) -> None:
    rows: list[int] = []

    def alike(_session, num_tokens: int, *, min_tokens: int) -> bool:
        rows.append(num_tokens)
        return min_tokens == 2

    monkeypatch.setattr(probing, "rows_are_alike", alike)
    for _ in range(2):
        load(memo=Memo(tmp_path)).close()
    keys = tuple(Memo(tmp_path)._read())
    assert (len(keys), len(probes), len(rows)) == (2, 1, 1)
    for key in keys:
        Memo(tmp_path).put(key, damage)
    load(memo=Memo(tmp_path)).close()
    assert (len(probes), len(rows)) == (2, 2)


def test_a_refusal_is_not_remembered_and_leaves_no_threads(tmp_path: Path, monkeypatch) -> None:
    def refuse(_session, _num_tokens: int, _num_slots: int) -> Invariance:
        raise BackendError("rows depend on each other")

    monkeypatch.setattr(probing, "probe_invariance", refuse)
    for _ in range(2):
        with pytest.raises(BackendError, match="depend on each other"):
            load(memo=Memo(tmp_path))
    assert Memo(tmp_path)._read() == {}


def test_closing_twice_is_closing_once() -> None:
    pair = load("ssd")
    pair.close()
    pair.close()
