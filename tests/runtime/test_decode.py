"""Batches from start to end: what is counted, and what an error leaves behind."""

from __future__ import annotations

import pytest

from engines.errors import BackendError, CapacityError
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice
from runtime.round import Rounds
from runtime.sampling.params import SamplingParams
from tests.helpers.toy_pair import ToyPair

GREEDY = SamplingParams()


@pytest.fixture(params=["ar", "sd", "ssd"])
def mode(request):
    return request.param


@pytest.fixture
def make():
    device = HostDevice(check=True)
    yield lambda mode, **options: ToyPair(device, mode, **options)
    device.close()


def tokens_of(pair: ToyPair, prompt=(1, 2), **options) -> list[int]:
    return pair.generate([prompt], [GREEDY], **options)[0][0].generated


def test_too_many_requests_are_refused_and_take_no_slot(make, mode) -> None:
    """The slots leased before the pool ran out were never given back."""
    pair = make(mode, max_batch=2)
    expected = tokens_of(pair)
    for _ in range(3):
        with pytest.raises(CapacityError, match=r"3 requests.*built for 2.*--max-batch"):
            pair.generate([[1]] * 3, [GREEDY] * 3)
    assert tokens_of(pair) == expected


def test_an_empty_batch_is_no_work(make, mode) -> None:
    requests, stats = make(mode).generate([], [])
    assert requests == []
    assert (stats.num_tokens, stats.num_rounds, stats.acceptance_length) == (0, 0, 0.0)


@pytest.mark.parametrize("side", ["target", "draft"])
def test_an_engine_that_failed_is_named_once_and_refused_from_then_on(make, side) -> None:
    """Its stream skips all further work, so a later request could only hang or repeat the
    error; it must say what to do instead."""
    pair = make("ssd")
    session = getattr(pair, f"{side}_session")
    session.table = session.table[:0]  # every call fails
    with pytest.raises(Exception, match="out of bounds"):
        tokens_of(pair)
    for _ in range(2):
        with pytest.raises(BackendError, match=r"open the bundle again.*out of bounds"):
            tokens_of(pair)


def interrupt(*_args: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_in_the_middle_of_a_round_leaves_the_pair_usable(
    make, mode, monkeypatch
) -> None:
    """ctrl-C comes while the host waits for a decision: the round is launched and goes on."""
    pair = make(mode)
    expected = tokens_of(pair)
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Rounds, "emitted", interrupt)
            with pytest.raises(KeyboardInterrupt):
                tokens_of(pair)
        assert tokens_of(pair) == expected


def test_an_interrupt_while_the_streams_are_drained_leaves_the_pair_usable(
    make, mode, monkeypatch
) -> None:
    """An impatient second ctrl-C: the next batch must wait for what still runs."""
    pair = make(mode)
    expected = tokens_of(pair)
    with monkeypatch.context() as patch:

        def twice(_row: int, _tokens: list[int]) -> None:
            patch.setattr(Rounds, "finish", interrupt)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            tokens_of(pair, on_tokens=twice)
    assert tokens_of(pair) == expected


def test_text_is_handed_on_while_the_next_round_runs(make, mode, monkeypatch) -> None:
    """Otherwise both engines stand still while the caller prints."""
    log: list[str] = []
    launch, emitted = Rounds.launch, Rounds.emitted
    monkeypatch.setattr(Rounds, "launch", lambda self: (log.append("launch"), launch(self))[1])
    monkeypatch.setattr(Rounds, "emitted", lambda self: (log.append("wait"), emitted(self))[1])
    pair = make(mode, num_draft=1, num_branches=2)
    tokens_of(pair, max_tokens=6, on_tokens=lambda _row, _tokens: log.append("text"))
    num_rounds = log.count("launch")
    assert num_rounds > 2
    later = ["launch", "text", "wait"] * (num_rounds - 1)
    assert log == ["launch", "wait", *later, "text"]


def test_the_text_that_is_handed_on_is_the_text_that_is_kept(make, mode) -> None:
    handed: dict[int, list[int]] = {0: [], 1: []}
    requests, _ = make(mode, max_batch=2).generate(
        [[1, 2], [3]], [GREEDY] * 2, on_tokens=lambda row, tokens: handed[row].extend(tokens)
    )
    assert [handed[0], handed[1]] == [request.generated for request in requests]


def perfect_pair(mode: str, **options) -> ToyPair:
    return ToyPair(SeededDevice(0), mode, agreement=1e6, **options)


def test_tokens_behind_a_stop_are_not_acceptance() -> None:
    """E11: of a block [d1, d2, EOS, d4, d5, bonus] three tokens count, and three are discarded.
    Counting all six flatters speculation on short answers."""
    plain = tokens_of(perfect_pair("ar"), max_tokens=6)
    assert plain[2] not in plain[:2]
    pair = perfect_pair("sd", num_draft=5)
    requests, stats = pair.generate([[1, 2]], [GREEDY], max_tokens=100, stop_ids=[plain[2]])
    assert requests[0].generated == plain[:2]
    assert stats.histogram == (0, 0, 0, 0, 0, 1)
    assert (stats.num_emitted, stats.num_discarded, stats.acceptance_length) == (3, 3, 3.0)


def test_tokens_beyond_the_budget_are_not_acceptance() -> None:
    _, stats = perfect_pair("sd", num_draft=5).generate([[1, 2]], [GREEDY], max_tokens=8)
    assert (stats.num_tokens, stats.num_emitted, stats.num_discarded) == (8, 8, 4)


def test_figures_of_a_batch_are_sums_over_its_rows(make, mode) -> None:
    lengths = [(1, 30), (40, 5), (7, 17)]
    pair = make(mode, max_batch=3)
    batch = [[1 + row] * length for row, (length, _) in enumerate(lengths)]
    requests, stats = pair.generate(batch, [GREEDY] * 3, max_tokens=30, stop_ids=[3])
    assert stats.num_tokens == sum(len(request.generated) for request in requests)
    assert stats.num_rounds == sum(stats.histogram)
    emitted = sum((k + 1) * count for k, count in enumerate(stats.histogram))
    assert stats.num_emitted + stats.num_discarded == emitted
    if mode == "ssd":
        # A row that has ended is a dummy: what it "decides" is neither a round nor a hit.
        assert sum(pair.draft.statistics.num_rounds.values()) == stats.num_rounds
        assert 0 < stats.num_hits <= stats.num_rounds


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_greedy_rows_of_a_ratio_batch_are_plain_decodings(make, mode) -> None:
    """Their proposals carry no laws, beside rows whose proposals do."""
    prompts = [[1, 2], [3], [4, 5, 6]]
    params = [GREEDY, SamplingParams(temperature=1.0, seed=3), GREEDY]
    plain = make("ar")
    expected = [tokens_of(plain, prompts[row]) for row in (0, 2)]
    device = HostDevice(check=True)
    pair = ToyPair(device, mode, max_batch=3, verify="ratio")
    requests, stats = pair.generate(prompts, params)
    device.close()
    assert [requests[0].generated, requests[2].generated] == expected
    assert stats.acceptance_length > 1.2


def test_a_perfect_draft_loses_nothing_in_a_batch_of_uneven_rows() -> None:
    """Rows grow into other buckets at other times; no row may pay for it with its hits."""
    pair = perfect_pair("ssd", max_batch=3, max_len=200, num_draft=4, num_branches=8)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in range(3)]
    _, stats = pair.generate([[1], [2] * 40, [3] * 90], params, max_tokens=100)
    assert sum(stats.histogram[1:4]) == 0
    assert stats.hit_rate > 0.9
