"""The verification kernels against plain numpy: 1,000 drafted blocks a rule, and the corners.

A kernel sums weights as integers and takes its own logarithms, so where a decision hangs on the
last places of a float32 it may fall the other way. `is_close_call` says where, and how many of the
random blocks may hold one.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins.law.reference import LawParams, Sampling, adjusted, survivors
from plugins.noise.reference import Purpose, gumbel, uniform
from plugins.verify.args import COUPLED, RATIO
from plugins.verify.kernel import KERNEL, num_bytes, random_case
from plugins.verify.sampled import Outcome, Status, verify_coupled, verify_ratio
from tests.helpers.sampling_cases import DraftedBlock, as_float32, drafted_block, float32
from tests.helpers.sampling_kernels import SMALLEST, Block, Grid, judge

INF = np.inf
ENTRIES = {"coupled": COUPLED, "ratio": RATIO}
DTYPES = ("float32", "float16", "uint16")
RULES = pytest.mark.parametrize("rule", ["coupled", "ratio"])


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(KERNEL.source, KERNEL.args)


def run(compiled, rule: str, block: DraftedBlock, grid: Grid = SMALLEST, **more) -> Outcome:
    launched = Block(
        block.logits,
        block.samplings,
        block.drafts,
        block.num_draft,
        block.vocab_size,
        block.q_ids,
        block.q_probs,
    )
    return judge(compiled, ENTRIES[rule], launched, grid, **more)


def reference(rule: str, block: DraftedBlock) -> Outcome:
    common = (block.samplings, block.vocab_size)
    logits, drafts, num_draft = as_float32(block.logits), block.drafts, block.num_draft
    if rule == "coupled":
        return verify_coupled(logits, drafts, num_draft, *common)
    return verify_ratio(logits, drafts, num_draft, block.q_ids, block.q_probs, *common)


def verdicts(outcome: Outcome) -> list[tuple[int, int, int]]:
    arrays = (outcome.accepted, outcome.next, outcome.status)
    return list(zip(*(each.tolist() for each in arrays), strict=True))


def is_close_call(rule: str, block: DraftedBlock, sequence: int, place: int) -> bool:
    """Whether the decision at a place of a sequence lies within the rounding of float32."""
    sampling = block.samplings[sequence]
    params, drafts = sampling.params, block.drafts[sequence]
    if params.temperature == 0:
        return False
    row = adjusted(
        as_float32(block.logits[sequence, place]),
        params,
        sampling.edits,
        drafts[:place].tolist(),
        block.vocab_size,
    )
    position = sampling.first_position + place
    uncut = LawParams(params.temperature, params.top_k)
    order = np.argsort(-row, kind="stable")[: survivors(row, uncut).size]
    with np.errstate(over="ignore"):
        weights = np.exp((row[order].astype(np.float64) - row.max()) / params.temperature)
    mass = weights.cumsum() / weights.sum()
    margins = [np.abs(mass - params.top_p).min()] if params.top_p < 1 else []
    kept = survivors(row, params)
    if rule == "coupled":
        scores = row + np.float32(params.temperature) * gumbel(sampling.seed, position, row.size)
        best = np.sort(scores[kept])[-2:]
        margins += [np.ptp(best) / max(1, params.temperature)] if kept.size > 1 else []
        return min(margins, default=1.0) < 1e-5
    p = np.zeros(row.size)
    p[order] = weights
    p = np.where(np.isin(np.arange(row.size), kept), p, 0)
    p /= p.sum()
    rest = p
    if place < block.num_draft[sequence]:
        q = np.zeros(row.size)
        used = block.q_ids[sequence, place] >= 0
        q[block.q_ids[sequence, place, used]] = block.q_probs[sequence, place, used]
        token = drafts[place]
        u = uniform(sampling.seed, position, Purpose.ACCEPT)
        margins.append(abs(u * q[token] - p[token]))
        rest = np.maximum(p - q, 0)
    u = uniform(sampling.seed, position, Purpose.RESIDUAL)
    margins += [np.abs(rest.cumsum() / rest.sum() - u).min()] if rest.any() else [0.0]
    return min(margins) < 1e-5


@RULES
def test_random_blocks_get_the_verdicts_of_plain_numpy(compiled, rule):
    """Every type, grid, parameter, penalty, tie, mask, and kind of damage that the cases draw."""
    rng = np.random.default_rng(20)
    num_sequences = num_close = 0
    seen = set()
    while num_sequences < 1000:
        size = int(
            rng.choice([rng.integers(1, 60), rng.integers(60, 700), 3000], p=[0.5, 0.48, 0.02])
        )
        block = drafted_block(rng, rule, vocab_size=size, dtype=rng.choice(DTYPES))
        grid = Grid(
            int(rng.integers(1, 4)), int(rng.choice([1, 1, 1, 2, 5])), int(rng.choice([1, 1, 3]))
        )
        found, expected = (
            verdicts(each) for each in (run(compiled, rule, block, grid), reference(rule, block))
        )
        for sequence, (one, other) in enumerate(zip(found, expected, strict=True)):
            num_sequences += 1
            seen.add((other[0], other[2]))
            if one != other:
                assert is_close_call(rule, block, sequence, min(one[0], other[0])), (one, other)
                num_close += 1
    assert num_close <= 2, "rounding decides far too often"
    assert {(count, Status.DONE) for count in range(5)} <= seen
    assert {status for _, status in seen} >= {Status.DONE, Status.DAMAGED}


@RULES
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_the_grid_decides_nothing(compiled, rule, seed):
    """A seed must give the same token on any number of blocks; threads only round sums anew."""
    rng = np.random.default_rng(seed)
    block = drafted_block(rng, rule, vocab_size=int(rng.integers(1, 300)))
    first = verdicts(run(compiled, rule, block))
    assert verdicts(run(compiled, rule, block, Grid(3))) == first
    assert verdicts(run(compiled, rule, block, Grid(2, 3, num_concurrent=2))) == first


@RULES
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6))
def test_batch_mates_decide_nothing(compiled, rule, seed):
    """S12: the same row alone and among others."""
    rng = np.random.default_rng(seed)
    block = drafted_block(rng, rule, vocab_size=int(rng.integers(1, 200)))
    whole = verdicts(run(compiled, rule, block))
    for sequence in range(len(block.samplings)):
        one = slice(sequence, sequence + 1)
        alone = replace(
            block,
            logits=block.logits[one],
            samplings=block.samplings[one],
            drafts=block.drafts[one],
            num_draft=block.num_draft[one],
            q_ids=block.q_ids[one],
            q_probs=block.q_probs[one],
        )
        assert verdicts(run(compiled, rule, alone)) == whole[one]


# Corners. -----------------------------------------------------------------------------------


def one_block(logits, drafts=(), params=None, q=(), seed=0, num_draft=None) -> DraftedBlock:
    """One sequence; q is a list of {id: prob}, one a draft."""
    rows = np.array([logits], np.float32)
    count = len(drafts)
    support = max([len(each) for each in q], default=1)
    ids = np.full((1, count, support), -1, np.int32)
    probs = np.zeros((1, count, support))
    for place, each in enumerate(q):
        ids[0, place, : len(each)] = list(each)
        probs[0, place, : len(each)] = list(each.values())
    return DraftedBlock(
        rows,
        [Sampling(params or LawParams(temperature=1.0), seed)],
        np.array(drafts, np.int64).reshape(1, count),
        np.array([count if num_draft is None else num_draft]),
        rows.shape[-1],
        ids,
        probs,
    )


@RULES
@pytest.mark.parametrize("damage", [np.nan, INF, -INF], ids=str)
@pytest.mark.parametrize(
    "params",
    [LawParams(), LawParams(1.0), LawParams(1.0, top_k=2), LawParams(1.0, min_p=0.5)],
    ids=["greedy", "plain", "top_k", "min_p"],
)
def test_a_damaged_row_ends_its_sequence_with_a_status(compiled, rule, damage, params):
    """Never with a token of chance; and `next` stays an id that an embedding has."""
    rows = np.full((2, 40), -INF if damage == -INF else 0.0, np.float32)
    rows[0] = -INF
    rows[0, 7] = 1
    rows[1, 3] = damage
    for grid in (Grid(), Grid(2, 2)):
        found = run(compiled, rule, one_block(rows, [7], params, [{7: 1.0}]), grid)
        assert verdicts(found) == [(1, 0, Status.DAMAGED)]
        found = run(compiled, rule, one_block(rows[::-1], [7], params, [{7: 1.0}]), grid)
        assert verdicts(found) == [(0, 0, Status.DAMAGED)]


@RULES
def test_damage_behind_the_last_judged_row_is_not_seen(compiled, rule):
    rows = np.zeros((3, 9), np.float32)
    rows[1:] = np.nan
    rows[0, 4] = 200
    block = one_block(rows, [8, 8], q=[{8: 1.0}, {8: 1.0}])
    assert verdicts(run(compiled, rule, block)) == [(0, 4, Status.DONE)]
    block = one_block(rows, [4, 4], num_draft=0, q=[{4: 1.0}, {4: 1.0}])
    assert verdicts(run(compiled, rule, block)) == [(0, 4, Status.DONE)]


@RULES
def test_a_cut_without_its_pass_is_told_not_ignored(compiled, rule):
    """S3: a sampler that skips a cut in silence emits tokens that the request excludes."""
    for params, status in (
        (LawParams(1.0, top_k=1), Status.UNSCANNED),
        (LawParams(1.0), Status.DONE),
        (LawParams(0.0, top_k=1), Status.DONE),
    ):
        block = one_block(np.zeros((1, 50)), params=params)
        found = run(compiled, rule, block, with_brackets=False)
        assert found.status.tolist() == [status]


@RULES
@pytest.mark.parametrize("cut", [{"top_k": 1}, {"top_p": 0.4}, {"min_p": float32(0.9)}], ids=str)
def test_a_cut_holds_in_every_row_for_every_seed(compiled, rule, cut):
    """S3, S7."""
    rows = np.log([[0.5, 0.4, 0.1]] * 4)
    params = LawParams(
        1.0, **{name: float32(v) if name == "top_p" else v for name, v in cut.items()}
    )
    for seed in range(30):
        block = one_block(rows, [0, 0, 0], params, [{0: 1.0}] * 3, seed)
        assert verdicts(run(compiled, rule, block)) == [(3, 0, Status.DONE)]


@RULES
@pytest.mark.parametrize("temperature", [1e-45, 1e-30, 1e-9, 1e-5])
def test_a_tiny_temperature_is_greedy(compiled, rule, temperature):
    """G6. Of equal logits the coupled rule takes the lowest, since T * g vanishes beside them."""
    row = np.random.default_rng(2).standard_normal((1, 500)) * 5
    params = LawParams(float32(temperature), top_p=float32(0.9))
    assert run(compiled, rule, one_block(row, params=params)).next[0] == row.argmax()


@pytest.mark.parametrize("temperature", [1e30, 3e38])
def test_at_a_huge_temperature_the_noise_decides(compiled, temperature):
    """T * g must not overflow: infinite scores would all be equal."""
    row = np.random.default_rng(3).standard_normal((1, 300))
    block = one_block(row, params=LawParams(float32(temperature)), seed=5)
    noise = gumbel(5, 0, 300)
    assert verdicts(run(compiled, "coupled", block)) == [(0, noise.argmax(), Status.DONE)]


def test_coupled_ties_go_to_the_lowest_id(compiled):
    rows = np.zeros((2, 5000), np.float32)
    rows[:, [11, 12, 4000]] = 7
    for params in (LawParams(), LawParams(1e-9), LawParams(1e-9, top_k=2)):
        for grid in (Grid(), Grid(3), Grid(2, 3)):
            found = run(compiled, "coupled", one_block(rows, [11], params), grid)
            assert verdicts(found) == [(1, 11, Status.DONE)]


def test_the_queue_hides_no_winner(compiled):
    """Ids far below the peak win by their noise now and then; skipping them would bend the law."""
    rng = np.random.default_rng(4)
    rows = (rng.standard_normal((1, 4000)) * 0.5).astype(np.float32)
    rows[0, :10] += 4
    tokens = []
    for seed in range(60):
        block = one_block(rows, seed=seed)
        tokens.append(int(run(compiled, "coupled", block, Grid(2, 2)).next[0]))
        assert tokens[-1] == reference("coupled", block).next[0]
    assert max(tokens) > 10 > min(tokens)


def test_a_ratio_draft_of_probability_zero_is_never_accepted(compiled):
    """p = 0 at the draft, u * q tiny; and the residual is p without it."""
    rows = [[-INF, 0.0, 0.0], [0.0, -INF, -INF]]
    for seed in range(20):
        block = one_block(rows, [0], q=[{0: 5e-324, 1: 1.0}], seed=seed)
        [(accepted, token, _)] = verdicts(run(compiled, "ratio", block))
        assert (accepted, token) == (0, 2)


def test_a_ratio_draft_that_its_law_excludes_is_told(compiled):
    for token in (0, -1, 3, 2**40):
        block = one_block(np.zeros((2, 3)), [token], q=[{1: 0.5, 2: 0.5}])
        assert verdicts(run(compiled, "ratio", block)) == [(0, 0, Status.FOREIGN_DRAFT)]


def test_equal_laws_accept_all_drafts_but_for_rounding(compiled):
    """S16: with p = q the ratio is 1; a p that comes out low by 1e-7 is rejected as seldom."""
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((5, 64)).astype(np.float32)
    probs = np.exp(rows.astype(np.float64))
    probs /= probs.sum(axis=1, keepdims=True)
    for seed in range(50):
        drafts = [int(rng.choice(64, p=each)) for each in probs[:4]]
        laws = [dict(enumerate(each)) for each in probs[:4]]
        assert run(compiled, "ratio", one_block(rows, drafts, q=laws, seed=seed)).accepted[0] == 4


@pytest.mark.stat
@RULES
def test_the_emitted_token_follows_the_law(compiled, rule):
    """Chi-square over 4,000 seeds: a perfect kernel exceeds the limit with probability 1e-6."""
    p, q = np.array([0.3, 0.45, 0.2, 0.05]), np.array([0.1, 0.3, 0.1, 0.5])
    num_seeds, counts = 4000, np.zeros(4)
    rng = np.random.default_rng(9)
    drafts = rng.choice(4, size=(num_seeds, 1), p=q)
    block = DraftedBlock(
        np.tile(np.log(p).astype(np.float32), (num_seeds, 2, 1)),
        [Sampling(LawParams(1.0), seed) for seed in range(num_seeds)],
        drafts,
        np.ones(num_seeds, np.int64),
        4,
        np.tile(np.arange(4, dtype=np.int32), (num_seeds, 1, 1)),
        np.tile(q, (num_seeds, 1, 1)),
    )
    found = run(compiled, rule, block)
    emitted = np.where(found.accepted > 0, drafts[:, 0], found.next)
    np.add.at(counts, emitted, 1)
    chi_square = ((counts - num_seeds * p) ** 2 / (num_seeds * p)).sum()
    assert chi_square < 30.7
    accepted = np.minimum(p, q).sum() if rule == "ratio" else (p * q).sum()
    assert abs(found.accepted.mean() - accepted) < 4.9 * np.sqrt(accepted / num_seeds)


# What is measured. --------------------------------------------------------------------------


def test_bytes_are_the_logits_of_the_rows_once_a_pass():
    assert num_bytes(5, 128256) == 5 * 128256 * 2
    assert num_bytes(5, 128256, num_passes=2, itemsize=4) == 2 * 5 * 128256 * 4
    for trial in KERNEL.trials:
        is_cut = "top-" in trial.label or "mixed" in trial.label
        assert bool(trial.first) == (is_cut or "greedy" in trial.label)
        batch, drafts, vocab_size = (int(each.split("=")[1]) for each in trial.label.split()[-3:])
        assert trial.num_bytes == num_bytes(
            batch * (drafts + 1), vocab_size, num_passes=2 if is_cut else 1
        )


@pytest.mark.parametrize("rule", ["greedy", "coupled", "ratio"])
def test_a_case_of_a_trial_has_drafts_that_stand_and_drafts_that_do_not(rule):
    """A case whose verdicts are all alike would show little on a GPU."""
    case = random_case(
        np.random.default_rng(1),
        rule,
        [LawParams(0.0 if rule == "greedy" else 0.5)] * 12,
        rows_each=4,
        vocab_size=300,
        num_slices=1,
    )
    assert len(set(case.expected["accepted"].tolist())) > 1
    assert not case.expected["status"].any()
