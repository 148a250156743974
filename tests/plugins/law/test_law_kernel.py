"""The law's two passes as kernels, against plain sorting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engines.errors import UsageError
from plugins.law import kernel
from plugins.law.reference import LawParams, Sampling, adjusted, is_damaged, survivors
from tests.helpers.sampling_cases import (
    as_float32,
    float32,
    random_logits,
    random_sampling,
    rank_of,
    stored,
)
from tests.helpers.sampling_kernels import SMALLEST, Block, Grid, find_cuts

KEEPS_ALL = 2**64 - 1
NEGLIGIBLE = 44
"""In units of T below the peak: 2**-64 of its weight. The kernels' bins end there, and so may a cut
that plain sorting makes further down; no noise and no mass in float32 reaches it."""

NUM_BETWEEN = 11
"""Where `num_between` stands in the struct Bracket, in words of 4 bytes."""


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(kernel.SOURCE, kernel.ARGS)


def random_grid(rng: np.random.Generator) -> Grid:
    return Grid(
        int(rng.integers(1, 4)), int(rng.choice([1, 1, 1, 2, 3, 7])), int(rng.choice([1, 2]))
    )


def cuts_of(compiled, row: np.ndarray, params: LawParams, grid: Grid = SMALLEST) -> list[int]:
    """The ids of one row that its cut leaves."""
    block = Block(stored(row, "float32")[None, None], [Sampling(params)])
    cut = find_cuts(compiled, block, grid)["cuts"][0]
    return np.flatnonzero(rank_of(row) <= cut).tolist()


def likely(row: np.ndarray, ids: np.ndarray, temperature: float) -> list[int]:
    with np.errstate(over="ignore"):
        depth = (float(row.max()) - row[ids].astype(np.float64)) / temperature
    return ids[depth < NEGLIGIBLE].tolist()


def test_random_rows_are_cut_where_sorting_cuts_them(compiled):
    """1,000 rows of every kind, type and grid."""
    rng = np.random.default_rng(1)
    num_cut = num_left_out = 0
    while num_cut < 1000:
        vocab_size, dtype = int(rng.integers(1, 700)), rng.choice(["float32", "float16", "uint16"])
        batch, rows, padding = (
            int(rng.integers(1, 6)),
            int(rng.integers(1, 4)),
            int(rng.integers(9)),
        )
        samplings = [random_sampling(rng, vocab_size) for _ in range(batch)]
        block = Block(
            random_logits(rng, (batch, rows, vocab_size + padding), dtype),
            samplings,
            drafts=rng.integers(0, vocab_size, (batch, rows - 1)),
            num_draft=rng.integers(0, rows, batch),
            vocab_size=vocab_size,
        )
        found = find_cuts(compiled, block, random_grid(rng))
        for sequence, place in np.ndindex(batch, rows):
            if place > block.num_draft[sequence]:
                continue
            params = samplings[sequence].params
            sampling = samplings[sequence]
            row = adjusted(
                as_float32(block.logits[sequence, place]),
                params,
                sampling.edits,
                block.drafts[sequence, :place].tolist(),
                vocab_size,
                sampling.banned_at(sampling.first_position + place),
            )
            cut = found["cuts"][sequence * rows + place]
            if is_damaged(row) or not params.truncates:
                assert cut == KEEPS_ALL
                continue
            kept = np.flatnonzero(rank_of(row) <= cut)
            expected = likely(row, survivors(row, params), params.temperature)
            assert likely(row, kept, params.temperature) == expected, (params, vocab_size)
            assert found["peaks"][sequence * rows + place] == row.max()
            num_cut += 1
            num_left_out += len(expected) < vocab_size
    assert num_left_out > 500, "too few of the cases test a cut"


@pytest.mark.parametrize("vocab_size", [5000, 40000])
@pytest.mark.parametrize("params", [{"top_k": 3000}, {"top_p": 0.7}, {"top_k": 4000, "top_p": 0.5}])
@pytest.mark.parametrize("grid", [Grid(2), Grid(3, 2)], ids=str)
def test_more_equal_logits_than_are_collected(compiled, vocab_size, params, grid):
    """The boundary bin overflows its buffer: the row is read again, and ids decide."""
    rng = np.random.default_rng(3)
    row = rng.choice(np.array([0, 0, 0, 0.01, 1], np.float32), vocab_size)
    params = LawParams(
        temperature=1.0, **{n: float32(v) if n == "top_p" else v for n, v in params.items()}
    )
    found = find_cuts(compiled, Block(row[None, None], [Sampling(params)]), grid)
    assert found["brackets"].view(np.uint32)[0, NUM_BETWEEN] > kernel.MAX_COLLECTED
    kept = np.flatnonzero(rank_of(row) <= found["cuts"][0])
    np.testing.assert_array_equal(kept, survivors(row, params))


def test_neighbouring_floats_are_told_apart(compiled):
    """All values of a bin's width one after the other: a cut between any two of them is found."""
    start = np.float32(17.25).view(np.uint32)
    row = (start + np.random.default_rng(0).permutation(3000).astype(np.uint32)).view(np.float32)
    for top_k in (1, 2, 999, 2047, 2049, 2999):
        params = LawParams(temperature=float32(0.5), top_k=top_k)
        assert cuts_of(compiled, row, params, Grid(1, 2)) == survivors(row, params).tolist()


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([1e-12, 1e-6, 0.05, 1, 30, 1e30]),
    scale=st.sampled_from([1e-3, 1, 30, 1000]),
    shift=st.sampled_from([-1e4, -30, 0, 30, 1e4]),
)
def test_top_p_is_exact_at_any_temperature_and_scale(compiled, seed, temperature, scale, shift):
    """A weight without the peak taken off over- or underflows; octaves must not."""
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(200) * scale + shift).astype(np.float32)
    params = LawParams(temperature=float32(temperature), top_p=float32(rng.random() * 0.98 + 0.01))
    kept = cuts_of(compiled, row, params)
    order = np.argsort(-row, kind="stable")
    with np.errstate(over="ignore"):
        weights = np.exp((row[order].astype(np.float64) - row.max()) / params.temperature)
    mass = weights.cumsum() / weights.sum()
    assert kept == sorted(order[: len(kept)].tolist())
    rounding = 2e-6
    assert mass[len(kept) - 1] >= params.top_p - rounding
    assert len(kept) == 1 or mass[len(kept) - 2] < params.top_p + rounding


@pytest.mark.parametrize("distance", [40.0, 50.0, 100.0, 1000.0])
@pytest.mark.parametrize("cut", [{"top_k": 40}, {"top_p": 0.5}], ids=str)
def test_a_slice_far_below_the_peak_is_not_mistaken_for_it(compiled, distance, cut):
    """The bins of a slice are a circle of 64 octaves: those far below have the same places."""
    rng = np.random.default_rng(7)
    row = rng.standard_normal(3000).astype(np.float32)
    row[1500:] += np.float32(distance)
    params = LawParams(1.0, **cut)
    for kept in (row, row[::-1].copy()):
        assert cuts_of(compiled, kept, params, Grid(2)) == survivors(kept, params).tolist()


@pytest.mark.parametrize("gap", [0.003, 0.01, 0.02])
@pytest.mark.parametrize("top", [30.0, -45.0])
def test_a_mass_is_as_exact_at_a_low_temperature(compiled, top, gap):
    """l / T is thousands there, and one float32 holds it to a thousandth only."""
    row = np.array([top - gap, top], np.float32)
    temperature = float32(0.01)
    share = 1 / (1 + np.exp((float(row[0]) - float(row[1])) / temperature))
    for top_p, kept in ((share * (1 - 2e-6), [1]), (share * (1 + 2e-6), [0, 1])):
        assert cuts_of(compiled, row, LawParams(temperature, top_p=float32(top_p))) == kept


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_the_grid_decides_nothing(compiled, seed):
    """Not one bit: a mass summed in another order would be another mass."""
    rng = np.random.default_rng(seed)
    block = Block(
        random_logits(rng, (2, 2, 500), "float32"), [random_sampling(rng, 500) for _ in range(2)]
    )
    first = find_cuts(compiled, block, Grid())
    for grid in (Grid(3), Grid(2, 3), Grid(3, 2, num_concurrent=3)):
        other = find_cuts(compiled, block, grid)
        np.testing.assert_array_equal(other["cuts"], first["cuts"])
        np.testing.assert_array_equal(other["peaks"], first["peaks"])


def test_memory_can_be_used_again(compiled):
    """A captured graph is replayed on the memory that the last run left."""
    rng = np.random.default_rng(5)
    params = LawParams(temperature=1.0, top_k=7, top_p=float32(0.8))
    values = find_cuts(
        compiled, Block(random_logits(rng, (1, 3, 90), "float32"), [Sampling(params)]), Grid(2)
    )
    expected = values["cuts"].copy()
    values["cuts"][:] = 0
    for entry in (kernel.BRACKETS, kernel.CUTS):
        compiled.launch(f"{entry}_f32", values, num_blocks=6, num_threads=2)
    np.testing.assert_array_equal(values["cuts"], expected)


def test_rows_behind_num_draft_are_not_read(compiled):
    logits = np.full((1, 3, 40), np.nan, np.float32)
    logits[0, 0] = np.arange(40)
    block = Block(logits, [Sampling(LawParams(temperature=1.0, top_k=4))], num_draft=np.array([0]))
    found = find_cuts(compiled, block, Grid(2))
    assert (rank_of(logits[0, 0]) <= found["cuts"][0]).sum() == 4
    assert found["cuts"][1:].tolist() == [0, 0]


@pytest.mark.parametrize("count", [-(2**40), -1, 99, 2**40])
def test_a_count_out_of_range_stays_within_the_batch(compiled, count):
    """It comes from device memory, where nobody can refuse it; it must not reach other memory."""
    block = Block(
        np.zeros((1, 2, 40), np.float32),
        [Sampling(LawParams(temperature=1.0, top_k=4))],
        num_draft=np.array([count]),
    )
    found = find_cuts(compiled, block, Grid())
    assert (found["cuts"] > 0).tolist() == [True, count > 0]


# What a launch needs. -----------------------------------------------------------------------


@pytest.mark.parametrize("num_rows", [1, 5, 80, 1088])
@pytest.mark.parametrize("vocab_size", [1, 2048, 32000, 151936, 262144, 2**20])
def test_slices_fill_the_gpu_and_none_is_too_long(num_rows, vocab_size):
    num_slices = kernel.slices_of(num_rows, vocab_size)
    tiles = -(-vocab_size // 2048)
    assert -(-tiles // num_slices) * 2048 <= kernel.MAX_SLICE
    assert num_slices <= tiles
    # Another slice a row would not fit beside the others, or there is nothing for it to read.
    assert (num_slices + 1) * num_rows > 528 or num_slices == tiles


@pytest.mark.parametrize("vocab_size", [0, 2**20 + 1])
def test_a_vocabulary_that_the_ranks_cannot_name_is_refused(vocab_size):
    with pytest.raises(UsageError, match=f"1..1048576, found {vocab_size}"):
        kernel.slices_of(1, vocab_size)


def test_parameters_without_edits_promise_that_there_are_none():
    arrays = kernel.params_of([Sampling(), Sampling(LawParams(temperature=1.0))])
    assert {name for name, each in arrays.items() if each is None} == {
        "edit_offsets",
        "edit_ids",
        "edit_bias",
        "edit_generated",
        "edit_in_prompt",
        "ban_before",
        "ban_ids",
    }
    penalised = kernel.params_of([Sampling(), Sampling(LawParams(presence=0.5))])
    assert penalised["edit_offsets"].tolist() == [0, 0, 0]


def test_bans_of_unequal_lists_are_padded():
    fields = kernel.params_of([Sampling(banned_ids=(7, 3), banned_before=5), Sampling()])
    assert fields["ban_ids"].tolist() == [[7, 3], [-1, -1]]
    assert fields["ban_before"].tolist() == [5, 0]
    assert fields["num_bans"] == 2
