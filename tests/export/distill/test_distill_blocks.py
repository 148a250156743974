"""What text is written with: a pool of blocks, products, noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.spec import ModelSpec
from export.distill.generate import blocks
from export.distill.generate.blocks import Blocks, Step
from export.distill.generate.noise import GumbelNoise
from export.distill.generate.products import Eager, Packed, Product, can_pack
from tests.helpers.memory import resident_bytes

pytestmark = pytest.mark.torch

SPEC = ModelSpec(
    family="llama",
    vocab_size=8,
    hidden_size=4,
    intermediate_size=4,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=2,
    rms_norm_eps=1e-5,
    rope_theta=10000.0,
    rope_scaling=None,
    max_position=256,
    tied_embeddings=True,
    qk_norm=False,
    eos_token_ids=(),
    bos_token_id=None,
)


def test_large_scores_are_not_rounded() -> None:
    """Biases of Qwen2's keys make scores of hundreds, of which 16 bits keep one in two."""
    import torch

    spec = replace(SPEC, qkv_bias=True, head_dim=64)
    pool = Blocks(spec, 1, 64, torch.bfloat16, torch.device("cpu"))
    pool.fit(0, 3)
    rows, positions = np.zeros(3, np.int64), np.arange(3)
    key = torch.zeros(3, 1, 64, dtype=torch.bfloat16)
    key[:, 0, 0], key[:, 0, 1] = 250.0, torch.tensor([0.0, 0.5, 1.0])
    value = torch.tensor([1.0, 2.0, 4.0])[:, None, None].expand(3, 1, 64)
    pool.store(0, key, value.bfloat16(), pool.places(rows, positions))
    query = torch.zeros(1, 2, 64, dtype=torch.bfloat16)
    query[..., :2] = 16.0
    found = Step(pool, rows[:1], np.array([2])).attend(0, query)
    shares = torch.tensor([500.0, 501.0, 502.0]).softmax(0)
    expected = float(shares @ torch.tensor([1.0, 2.0, 4.0]))
    assert abs(float(found[0, 0, 0]) - expected) < 0.02


def test_noise_draws_from_the_softmax() -> None:
    """Noise of the wrong law (or its sign) would write text that the target does not write.

    False alarm: chi-square with 3 degrees of freedom above 16.3, one in a thousand seeds.
    """
    import torch

    logits = torch.tensor([2.0, 1.0, 0.0, -1.0])
    noise = GumbelNoise(4, 100, seed=3)
    drawn = torch.cat(
        [noise.sample(logits.repeat(100, 1), torch.full((100,), 0.8)) for _ in range(40)]
    )
    expected = 4000 * (logits / 0.8).softmax(0).numpy()
    found = np.bincount(drawn.numpy(), minlength=4)
    assert float(((found - expected) ** 2 / expected).sum()) < 16.3
    many = logits.repeat(100, 1)
    assert set(noise.sample(many, torch.zeros(100)).tolist()) == {0}
    noise.sample(many, torch.ones(100))
    assert torch.equal(many, logits.repeat(100, 1))


def test_rows_of_a_batch_draw_apart() -> None:
    """Equal rows with equal noise would write one text many times over."""
    import torch

    noise = GumbelNoise(64, 100, seed=3)
    drawn = noise.sample(torch.zeros(100, 64), torch.ones(100)).tolist()
    assert len(set(drawn)) > 40  # of 64 ids; about 51 are expected


@pytest.mark.parametrize("with_bias", [False, True])
def test_packed_products_are_the_eager_ones(with_bias: bool) -> None:
    """Another order of the operands, or a step left out, would write noise in bfloat16 alone."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    weight, bias = some(48, 80), some(48) if with_bias else None
    if not can_pack(weight):
        pytest.skip("a CPU that does not compute in bfloat16 writes in float32")
    wide = Eager(weight.float(), None if bias is None else bias.float())
    for num_rows in (1, 7, 200):
        x, other = some(num_rows, 80), some(num_rows, 48)
        kinds: list[Product] = [Eager(weight, bias), Packed(weight, bias)]
        for each in kinds:
            for found, expected in (
                (each.plain(x), wide.plain(x.float())),
                (each.silu(x), wide.silu(x.float())),
                (each.times(x, other), wide.times(x.float(), other.float())),
                (each.plus(x, other), wide.plus(x.float(), other.float())),
            ):
                torch.testing.assert_close(found.float(), expected, rtol=0.02, atol=0.1)


def test_a_pool_takes_no_memory_before_it_is_used() -> None:
    """Rows of 1,024 places are rarely full, and all of the default target's would take 3 GB."""
    import torch

    before = resident_bytes()
    pool = blocks.zeros((2, 1 << 28), torch.bfloat16, torch.device("cpu"))  # 1 GiB
    pool[1, -1] = 3.0
    assert pool[0, 0] == 0.0
    assert resident_bytes() - before < 1 << 28


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 200)), max_size=40))
def test_no_block_belongs_to_two_rows(changes: list[tuple[int, int]]) -> None:
    """And none is lost: all rows may be full at any time."""
    import torch

    pool = Blocks(SPEC, 4, 200, torch.float32, torch.device("cpu"))
    lengths = dict.fromkeys(range(4), 0)
    for row, length in [*changes, *((row, 200) for row in range(4))]:
        pool.fit(row, length)
        lengths[row] = length
        rows = np.array([row for row in lengths if lengths[row]], np.int64)
        if len(rows):
            table, theirs = pool.tables(rows)
            assert theirs.sum(1).tolist() == [-(-lengths[row] // blocks.SIZE) for row in rows]
            assert len(set(table[theirs].tolist())) == theirs.sum()
            assert table.max() < pool.keys.shape[1]
