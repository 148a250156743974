"""The drafting kernel against plain numpy: 1,000 batches a rule, and the corners."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from plugins.law.reference import LawParams, Sampling
from plugins.sample import args, kernel
from plugins.sample.args import Batch
from plugins.sample.sampled import Reshaping
from plugins.verify.sampled import Status
from tests.helpers.drafting import (
    COUPLED,
    OUTPUTS,
    RATIO,
    RULES,
    Grid,
    differences,
    launch,
    launch_entry,
    random_batch,
    random_grid,
)
from tests.helpers.sampling_cases import float32

INF = np.inf
SAMPLED = LawParams(temperature=1.0)


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.KERNEL.source, args.ARGS)


def one_row(logits, params: LawParams = SAMPLED, **fields) -> Batch:
    defaults = {"num_candidates": 4, "samplings": [Sampling(params, seed=5)]}
    return Batch(
        logits=np.asarray(logits, np.float32).reshape(1, 1, -1),
        positions=np.array([[17]]),
        **{**defaults, **fields},
    )


@pytest.mark.parametrize("rule", RULES)
def test_the_kernel_is_the_reference_in_1000_batches(compiled, rule: str) -> None:
    for index in range(1000):
        rng = np.random.default_rng([index, RULES.index(rule)])
        batch = random_batch(rng, rule)
        found = launch(compiled, batch, random_grid(rng))
        assert differences(batch, found) == [], f"batch {index}"


@pytest.mark.parametrize("rule", RULES)
@given(
    seed=st.integers(0, 2**32),
    num_slices=st.integers(1, 9),
    num_threads=st.sampled_from([1, 3, 16]),
)
def test_the_grid_does_not_matter(
    compiled, rule: str, seed: int, num_slices: int, num_threads: int
) -> None:
    """To the last bit: a seed gives the same tokens on every GPU, whatever its number of blocks."""
    batch = random_batch(np.random.default_rng(seed), rule)
    alone = launch(compiled, batch)
    cut_up = launch(compiled, batch, Grid(num_slices, num_threads, 2))
    for name in OUTPUTS:
        np.testing.assert_array_equal(cut_up[name], alone[name], name)


@pytest.mark.parametrize(
    ("dtype", "num_threads"), [("float32", 1), ("float16", 1), ("uint16", 1), ("float16", 128)]
)
def test_a_large_vocabulary_in_the_worst_order(compiled, dtype: str, num_threads: int) -> None:
    """Each id better than all before: every one of them passes the list's bound."""
    size = 5_000
    rising = np.linspace(-6, 6, size, dtype=np.float32).reshape(1, 1, size)
    if dtype == "uint16":
        logits = (rising.view(np.uint32) >> 16).astype(np.uint16)
    else:
        logits = rising.astype(dtype)
    sampling = [Sampling(LawParams(temperature=float32(0.01)), seed=3)]
    batch = Batch(logits, sampling, np.array([[4]]), num_candidates=64, max_support=128)
    for each in (batch, replace(batch, max_support=0)):
        assert differences(each, launch(compiled, each, Grid(2, num_threads))) == []


@pytest.mark.parametrize(
    "params",
    [LawParams(1.0, top_k=3), LawParams(1.0, top_k=3000), LawParams(1.0, top_p=0.4)],
    ids=str,
)
@pytest.mark.parametrize("max_support", [0, 128])
def test_more_equal_logits_than_a_pass_collects(compiled, params, max_support: int) -> None:
    """Then each block settles the cut for itself."""
    logits = np.zeros(9000, np.float32)
    logits[::3] = 1
    batch = one_row(logits, params, max_support=max_support)
    assert differences(batch, launch(compiled, batch, Grid(3, 2, 2))) == []


def test_an_id_that_stays_ranks_before_all_that_are_cut(compiled) -> None:
    """Also where its noise takes its value below theirs, and the list was full before it came."""
    logits = 0.1 * np.random.default_rng(2).standard_normal(4000)
    logits[-6:] = 1
    batch = one_row(logits, LawParams(5.0, top_k=6), num_candidates=9)
    for num_threads in (1, 16):
        found = launch(compiled, batch, Grid(1, num_threads))
        assert set(found["candidates"][0, :6]) == set(range(3994, 4000))
        assert differences(batch, found) == []


@pytest.mark.parametrize("bad", [np.nan, INF], ids=str)
def test_damage_at_the_end_of_a_long_row_is_seen(compiled, bad: float) -> None:
    """Most ids of such a row are passed over; this one must not be."""
    for place in range(3990, 4000):
        logits = np.random.default_rng(2).standard_normal(4000)
        logits[7], logits[place] = 20, bad
        for num_threads in (1, 16):
            found = launch(compiled, one_row(logits), Grid(1, num_threads))
            assert found["status"].tolist() == [Status.DAMAGED]


@pytest.mark.parametrize("max_support", [0, 5])
def test_equal_logits_rank_by_draft_id_and_not_by_target_id(compiled, max_support: int) -> None:
    batch = one_row(
        np.zeros(6), LawParams(), ids_map=np.array([9, 2, 7, 1, 0, 4], np.int32), exclude=None
    )
    found = launch(compiled, replace(batch, max_support=max_support), Grid(3))
    assert found["candidates"].tolist() == [[9, 2, 7, 1]]
    assert found["sample"].tolist() == [9]


def test_signed_zeros_are_equal(compiled) -> None:
    found = launch(compiled, one_row([-0.0, 0.0, -0.0, 0.0], LawParams()))
    assert found["candidates"].tolist() == [[0, 1, 2, 3]]


def test_the_excluded_id_gives_way_to_the_next(compiled) -> None:
    batch = one_row([5, 4, 3, 2, 1], LawParams(), num_candidates=3)
    for excluded, expected in ((1, [0, 2, 3]), (4, [0, 1, 2]), (-1, [0, 1, 2]), (99, [0, 1, 2])):
        found = launch(compiled, replace(batch, exclude=np.array([[excluded]])))
        assert found["candidates"].tolist() == [expected]
        assert found["sample"].tolist() == [0]  # a token may be drafted where another was rejected


def test_behind_the_last_candidate_stands_no_id(compiled) -> None:
    found = launch(compiled, one_row([1, 2], exclude=np.array([[0]]), num_candidates=3))
    assert found["candidates"].tolist() == [[1, -1, -1]]


def test_ids_behind_the_vocabulary_are_never_named(compiled) -> None:
    logits = np.full((1, 1, 16), INF, np.float32)
    logits[..., :3] = [0, 1, 2]
    batch = one_row(logits, num_candidates=4, vocab_size=3)
    assert sorted(launch(compiled, batch)["candidates"][0].tolist()) == [-1, 0, 1, 2]


@pytest.mark.parametrize("params", [LawParams(), SAMPLED, LawParams(1.0, top_k=2)], ids=str)
@pytest.mark.parametrize("max_support", [0, 4])
@pytest.mark.parametrize(
    "bad", [[0, np.nan, 1, 0], [0, -np.nan, 1, 0], [0, INF, 1, 0], [-INF] * 4], ids=str
)
def test_a_damaged_row_names_an_id_that_exists(compiled, params, max_support: int, bad) -> None:
    """And says so: the token goes into the next call before a host has seen the status."""
    found = launch(compiled, one_row(bad, params, max_support=max_support), Grid(2))
    assert found["status"].tolist() == [Status.DAMAGED]
    assert found["sample"].tolist() == [0]
    assert (found["candidates"] == -1).all()
    assert (found["q_ids"] == -1).all()
    assert (found["q_probs"] == 0).all()


@pytest.mark.parametrize("max_support", [0, 4])
def test_the_largest_temperature_overflows_nothing(compiled, max_support: int) -> None:
    """T * g is kept finite; a row must not look damaged for its temperature."""
    params = LawParams(float32(np.finfo(np.float32).max))
    batch = one_row([1, 2, 3, -INF, 4], params, max_support=max_support)
    found = launch(compiled, batch)
    assert found["status"].tolist() == [Status.DONE]
    assert differences(batch, found) == []


def test_a_cut_without_its_first_pass_is_reported(compiled) -> None:
    batch = one_row([1, 2, 3], LawParams(1.0, top_k=2))
    values = args.values(batch, 1) | {"brackets": None}
    compiled.launch("ssd_sample_f32", values, num_blocks=1, num_threads=1)
    assert values["status"].tolist() == [Status.UNSCANNED]
    assert values["sample"].tolist() == [0]


def test_saguaro_takes_from_the_likeliest_and_gives_to_the_rest(compiled) -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    for scale, probs in (
        (0.5, [0.4 / 1.3, 0.3 / 1.3, 0.4 / 1.3, 0.2 / 1.3]),
        (0.0, [2 / 3, 1 / 3, 0, 0]),
        (1.0, [0.4, 0.3, 0.2, 0.1]),
    ):
        batch = one_row(logits, max_support=4, reshapings=[Reshaping(2, scale)])
        found = launch(compiled, batch)
        np.testing.assert_allclose(found["q_probs"], [probs], rtol=1e-6)
        ids = [2, 3, -1, -1] if scale == 0 else [0, 1, 2, 3]
        assert found["q_ids"].tolist() == [ids]


@pytest.mark.parametrize("top", [4, 64])
def test_saguaro_leaves_a_law_that_lies_among_the_candidates(compiled, top: int) -> None:
    """C = 0 would leave nothing to draw from."""
    batch = one_row([1, 2, 3, 4], max_support=8)
    plain = launch(compiled, batch)
    shaped = launch(compiled, replace(batch, reshapings=[Reshaping(top, 0.0)]))
    for name in OUTPUTS:
        np.testing.assert_array_equal(shaped[name], plain[name])


def test_a_row_does_not_see_its_neighbours(compiled) -> None:
    """S12: the same seed and text give the same token, whoever else is in the batch."""
    rng = np.random.default_rng(3)
    for rule in (COUPLED, RATIO):
        batch = random_batch(rng, rule)
        whole = launch(compiled, batch)
        for sequence in range(batch.logits.shape[0]):
            part = slice(sequence, sequence + 1)
            alone = replace(
                batch,
                logits=batch.logits[part],
                samplings=batch.samplings[part],
                positions=batch.positions[part],
                exclude=None if batch.exclude is None else batch.exclude[part],
                reshapings=batch.reshapings and batch.reshapings[part],
            )
            rows = slice(sequence * batch.logits.shape[1], (sequence + 1) * batch.logits.shape[1])
            for name, array in launch(compiled, alone).items():
                np.testing.assert_array_equal(array, whole[name][rows], name)


def test_sizes_that_no_list_holds_are_refused() -> None:
    with pytest.raises(UsageError, match=r"0\.\.64, found 65"):
        args.list_size(65, 0)
    with pytest.raises(UsageError, match=r"0\.\.128 ids, found 129"):
        args.list_size(8, 129)
    assert args.list_size(8, 0) == 9
    assert args.list_size(64, 128) == 128


def test_the_bytes_are_those_of_the_arrays() -> None:
    """Counted from a batch's own arrays."""
    rng = np.random.default_rng(0)
    batch = kernel.random_batch(
        rng, 2, 3, 40, num_candidates=4, max_support=8, reduced_from=100, dtype="float16"
    )
    values = args.values(batch, 1)
    arrays = [batch.logits, batch.ids_map, batch.positions, batch.exclude]
    arrays += [values[name] for name in OUTPUTS]
    found = args.num_bytes(6, 40, num_candidates=4, max_support=8, is_reduced=True)
    assert found == sum(each.nbytes for each in arrays)


def test_positions_may_be_those_of_the_tokens_fed(compiled) -> None:
    """A step's own input: the token that it drafts is one further on."""
    rng = np.random.default_rng(7)
    for _ in range(30):
        batch = random_batch(rng, COUPLED)
        values = args.values(batch, 1)
        values |= {"positions": batch.positions - 1, "position_offset": 1}
        entries = [args.BRACKETS, args.SAMPLE] if batch.truncates else [args.SAMPLE]
        for entry in entries:
            launch_entry(compiled, f"{entry}_{batch.suffix}", values, batch.num_rows, Grid())
        assert differences(batch, {name: values[name] for name in OUTPUTS}) == []
