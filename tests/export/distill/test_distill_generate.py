"""Many rows side by side: each must write what its prompt alone would, whatever the others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.checkpoint.api import open_checkpoint
from export.checkpoint.spec import ModelSpec
from export.distill.generate import blocks, generator
from export.distill.generate.blocks import Blocks
from export.distill.generate.decoder import Decoder
from export.distill.generate.generator import Done, Generator, Job
from export.distill.generate.noise import GumbelNoise
from export.distill.generate.products import Eager, Packed, Product, can_pack
from export.distill.llama import Llama
from export.distill.text import load_target
from tests.helpers.checkpoints import make_llama, make_qwen3
from tests.helpers.memory import resident_bytes

pytestmark = pytest.mark.torch

MAX_LEN = 100


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


def llama_in(folder: Path, **options: int) -> Llama:
    return load_target(open_checkpoint(make_llama(folder / "m", **options)))


def biased(folder: Path) -> Llama:
    """As Qwen2 is."""
    import torch

    model = llama_in(folder)
    generator = torch.Generator().manual_seed(1)
    weights = dict(model.weights)
    for name, weight in model.weights.items():
        if any(f"{part}_proj" in name for part in "qkv"):
            bias = name.replace(".weight", ".bias")
            weights[bias] = torch.randn(len(weight), generator=generator)
    return Llama(replace(model.spec, qkv_bias=True), weights)


MODELS: dict[str, Callable[[Path], Llama]] = {
    "llama": llama_in,
    "keys for each query head": lambda folder: llama_in(folder, kv_heads=4),
    "keys for all query heads": lambda folder: llama_in(folder, kv_heads=1),
    "qwen2": biased,
    "qwen3": lambda folder: load_target(open_checkpoint(make_qwen3(folder / "m"))),
}


def alone(model: Llama, prompt: Sequence[int], num_tokens: int) -> list[int]:
    import torch

    sequence = list(prompt)
    for _ in range(num_tokens):
        with torch.no_grad():
            logits = model.logits(model.hidden(torch.tensor([sequence])))
        sequence.append(int(logits[0, -1].argmax()))
    return sequence[len(prompt) :]


def generator_for(model: Llama, num_rows: int, end_ids: tuple[int, ...] = ()) -> Generator:
    noise = GumbelNoise(model.spec.vocab_size, num_rows, 0)
    return Generator(
        model, num_rows=num_rows, max_len=MAX_LEN, end_ids=end_ids, noise=noise, keep_states=True
    )


def written(generator: Generator, jobs: Sequence[Job]) -> list[Done]:
    left = list(jobs)
    return list(generator.run(lambda: left.pop(0) if left else None))


def check_alone(model: Llama, done: Done) -> None:
    """Greedy answers only."""
    import torch

    prompt = list(done.job.prompt)
    assert done.answer == alone(model, prompt, done.job.max_tokens)
    with torch.no_grad():
        states = model.hidden(torch.tensor([prompt + done.answer]))[0, :-1].numpy()
    assert done.states.shape == states.shape
    np.testing.assert_allclose(done.states, states, atol=0.02)


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("name", MODELS)
def test_rows_write_what_each_prompt_alone_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """Refilled rows, stale blocks, positions: a slip lets one sequence change another."""
    monkeypatch.setattr(blocks, "SIZE", size)
    monkeypatch.setattr(generator, "ALIKE", 3)  # several groups a pass
    model = MODELS[name](tmp_path)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, 300, rng.integers(1, 40)).tolist() for _ in range(11)]
    jobs = [Job(prompt, 1 + 5 * (n % 4), 0.0, n) for n, prompt in enumerate(prompts)]
    done = written(generator_for(model, 3), jobs)
    assert sorted(each.job.tag for each in done) == list(range(11))
    for each in done:
        check_alone(model, each)


@pytest.mark.parametrize("seed", range(6))
def test_texts_that_share_their_starts_do_not_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Prompts that share starts of any length: a row that keeps a token too many of its last text
    would go on from another one."""
    monkeypatch.setattr(blocks, "SIZE", 4)
    model = llama_in(tmp_path)
    rng = np.random.default_rng(seed)
    texts = rng.integers(3, 300, (3, 30))
    jobs = []
    for _ in range(20):
        prompt = texts[rng.integers(3), : rng.integers(1, 31)].copy()
        if rng.random() < 0.5:
            prompt[rng.integers(len(prompt))] = rng.integers(3, 300)
        jobs.append(Job(prompt.tolist(), int(rng.integers(1, 20)), 0.0))
    done = written(generator_for(model, 4), jobs)
    assert len(done) == 20
    for each in done:
        check_alone(model, each)


def test_what_goes_on_from_a_finished_text_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that is answered next, in a row of its own or in another's: most of the prompts
    that a run reads begin so."""
    num_read: list[int] = []
    hidden = Decoder.hidden

    def counted(self: Decoder, tokens, positions, attend):
        num_read.append(len(tokens))
        return hidden(self, tokens, positions, attend)

    monkeypatch.setattr(Decoder, "hidden", counted)
    model = llama_in(tmp_path)
    rng = np.random.default_rng(0)
    starts = [rng.integers(3, 300, 20).tolist() for _ in range(2)]
    writer = generator_for(model, 2)
    first = written(writer, [Job(start, 5, 0.0) for start in starts])
    assert num_read == [40, 2, 2, 2, 2]
    num_read.clear()
    longer = [[*done.job.prompt, *done.answer, 7, 8] for done in reversed(first)]
    then = written(writer, [Job(prompt, 3, 0.0) for prompt in longer])
    # The last token of an answer was never fed.
    assert num_read == [6, 2, 2]
    for each in then:
        check_alone(model, each)


def test_a_long_prompt_is_read_in_stretches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of a whole prompt grow with its square: gigabytes at 16,000 tokens."""
    monkeypatch.setattr(generator, "STRETCH", 7)
    model = llama_in(tmp_path)
    rng = np.random.default_rng(0)
    jobs = [Job(rng.integers(3, 300, length).tolist(), 6, 0.0) for length in (40, 7, 8, 3, 15)]
    done = written(generator_for(model, 2), jobs)
    assert len(done) == 5
    for each in done:
        check_alone(model, each)


def test_a_stop_in_a_prompt_gives_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "STRETCH", 7)
    asked = iter([False] * 3 + [True] * 100)
    left = [Job([5] * 40, 6, 0.0), Job([6] * 7, 6, 0.0)]
    writer = generator_for(llama_in(tmp_path), 2)
    [done] = writer.run(lambda: left.pop() if left else None, lambda: next(asked))
    assert (list(done.job.prompt), len(done.answer)) == ([6] * 7, 3)
    assert written(writer, []) == []


def test_long_prompts_are_not_all_read_in_one_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """128 prompts of 1,000 tokens at once would take gigabytes."""
    monkeypatch.setattr(generator, "READ_TOKENS", 25)
    most = 0
    hidden = Decoder.hidden

    def watched(self: Decoder, tokens, positions, attend):
        nonlocal most
        most = max(most, len(tokens))
        return hidden(self, tokens, positions, attend)

    monkeypatch.setattr(Decoder, "hidden", watched)
    model = llama_in(tmp_path)
    rng = np.random.default_rng(0)
    jobs = [Job(rng.integers(3, 300, 20).tolist(), 4, 0.0) for _ in range(8)]
    done = written(generator_for(model, 8), jobs)
    assert len(done) == 8
    assert most <= 40 + 8


def test_an_answer_ends_with_its_end_id(tmp_path: Path) -> None:
    model = llama_in(tmp_path)
    answer = alone(model, [5, 6, 7], 12)
    [done] = written(generator_for(model, 2, (answer[4],)), [Job([5, 6, 7], 12, 0.0)])
    assert done.answer == answer[: answer.index(answer[4]) + 1]


def test_an_answer_ends_where_its_row_does(tmp_path: Path) -> None:
    """The last token needs no place: nothing follows it."""
    model = llama_in(tmp_path)
    prompt = np.random.default_rng(0).integers(3, 300, MAX_LEN - 3).tolist()
    [done] = written(generator_for(model, 1), [Job(prompt, 50, 0.0)])
    assert done.answer == alone(model, prompt, 4)
    with pytest.raises(ValueError, match="a prompt of 101 tokens in rows of 100"):
        written(generator_for(model, 1), [Job([5] * 101, 1, 0.0)])


def test_a_stop_keeps_what_has_been_written(tmp_path: Path) -> None:
    model = llama_in(tmp_path)
    asked = iter([False] * 5 + [True] * 100)
    [done] = generator_for(model, 1).run(lambda: Job([9, 8], 50, 0.0), lambda: next(asked))
    assert len(done.answer) == 5
    assert done.answer == alone(model, [9, 8], 5)


def test_rows_that_nobody_waited_for_do_not_go_on(tmp_path: Path) -> None:
    """Two rows end in one pass, the caller takes one and leaves: the other was written past its
    end by the next run."""
    model = llama_in(tmp_path)
    writer = generator_for(model, 2)
    left = [Job([5, 6, 7], 4, 0.0), Job([8, 9], 4, 0.0)]
    running = writer.run(lambda: left.pop() if left else None)
    next(running)
    running.close()
    [done] = written(writer, [Job([4, 4], 5, 0.0)])
    check_alone(model, done)


def test_states_are_kept_on_demand(tmp_path: Path) -> None:
    model = llama_in(tmp_path)
    writer = Generator(
        model,
        num_rows=2,
        max_len=MAX_LEN,
        end_ids=(),
        noise=GumbelNoise(model.spec.vocab_size, 2, 0),
        keep_states=False,
    )
    [done] = written(writer, [Job([5, 6, 7], 4, 0.0)])
    assert done.answer == alone(model, [5, 6, 7], 4)
    assert done.states.shape == (6, 0)


def test_a_prompt_without_a_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a prompt of 0 tokens"):
        written(generator_for(llama_in(tmp_path), 1), [Job([], 4, 0.0)])


def test_a_job_may_come_when_another_has_finished(tmp_path: Path) -> None:
    """``next_job`` gives None while an answer's follow-up is being written."""
    model = llama_in(tmp_path)
    left = [Job([5, 6, 7], 4, 0.0), None, Job([8, 9], 3, 0.0)]
    found = list(generator_for(model, 2).run(lambda: left.pop(0) if left else None))
    assert [list(each.job.prompt) for each in found] == [[5, 6, 7], [8, 9]]


@pytest.mark.parametrize("size", [4, 64])
@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_writes_almost_what_float32_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """The type that text is written in: products in another layout, shares of attention rounded."""
    import torch

    monkeypatch.setattr(blocks, "SIZE", size)
    model = MODELS[name](tmp_path)
    rng = np.random.default_rng(0)
    jobs = [Job(rng.integers(3, 300, 20 + 8 * n).tolist(), 12, 0.0) for n in range(8)]
    for done in written(generator_for(model.to("cpu", torch.bfloat16), 4), jobs):
        ids = [*done.job.prompt, *done.answer]
        with torch.no_grad():
            states = model.hidden(torch.tensor([ids]))[0, :-1].numpy()
        wrong = np.linalg.norm(done.states - states, axis=1) / np.linalg.norm(states, axis=1)
        assert np.median(wrong) < 0.04  # of 8 bits; a slip makes it 1
        assert wrong.max() < 0.25


def test_large_scores_are_not_rounded() -> None:
    """Biases of Qwen2's keys make scores of hundreds; of which 16 bits keep one in two."""
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
    found = blocks.Step(pool, rows[:1], np.array([2])).attend(0, query)
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
