"""The verification kernels in the corners: damage, cuts, ties, bans, extreme temperatures, laws."""

from __future__ import annotations

import numpy as np
import pytest

from plugins.law.reference import LawParams, Sampling
from plugins.noise.reference import gumbel
from plugins.verify.kernel import KERNEL
from plugins.verify.sampled import Status
from tests.helpers.sampling_cases import DraftedBlock, drafted_block, float32
from tests.helpers.sampling_kernels import SMALLEST, Block, Grid, judge
from tests.helpers.verdicts import ENTRIES, one_block, reference, run, verdicts

INF = np.inf
RULES = pytest.mark.parametrize("rule", ["coupled", "ratio"])


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(KERNEL.source, KERNEL.args)


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
def test_a_text_that_must_go_on_never_ends(compiled, rule):
    """min_tokens: a banned id, however likely, is neither accepted nor follows; then it may."""
    rows = np.zeros((3, 40), np.float32)
    rows[:, 9] = 300  # the end of the text
    rows[0, 7] = 299
    for params in (LawParams(), LawParams(1.0), LawParams(1.0, top_k=1), LawParams(1.0, top_p=0.5)):
        block = one_block(rows, [7, 9], params, [{7: 1.0}, {9: 1.0}], num_draft=2)
        for before, expected in ((0, (0, 9)), (1, (2, 9)), (2, (1, None))):
            block.samplings = [Sampling(params, 3, 0, banned_ids=(9, 50), banned_before=before)]
            for grid in (SMALLEST, Grid(2, 2)):
                [(accepted, token, status)] = verdicts(run(compiled, rule, block, grid))
                assert status == Status.DONE
                assert accepted == expected[0]
                assert token == expected[1] if expected[1] else token != 9


@RULES
def test_drafts_may_stand_among_other_tokens(compiled, rule):
    """As in a verification's own input (x0, x1 .. xK): nothing is copied for the kernel."""
    rng = np.random.default_rng(11)
    for _ in range(30):
        block = drafted_block(rng, rule, vocab_size=int(rng.integers(2, 90)), has_edits=True)
        fed = np.full((len(block.samplings), block.drafts.shape[1] + 1), -7)
        fed[:, 1:] = block.drafts
        launched = Block(
            *(block.logits, block.samplings, fed, block.num_draft, block.vocab_size),
            *(block.q_ids, block.q_probs),
        )
        fields = {"drafts": fed.ctypes.data + 8, "drafts_stride": fed.shape[1]}
        found = judge(compiled, ENTRIES[rule], launched, SMALLEST, **fields)
        assert verdicts(found) == verdicts(run(compiled, rule, block))


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
