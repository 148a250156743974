"""Many rows side by side: each must write what its prompt alone would, whatever the others do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from export.checkpoint.api import open_checkpoint
from export.distill.generate import blocks, generator
from export.distill.generate.decoder import Decoder
from export.distill.generate.generator import Done, Generator, Job
from export.distill.generate.noise import GumbelNoise
from export.distill.llama import Llama
from export.distill.text import load_target
from tests.helpers.checkpoints import make_llama, make_qwen3

pytestmark = pytest.mark.torch

MAX_LEN = 100


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


@pytest.fixture
def num_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each pass, as they happen."""
    found: list[int] = []
    hidden = Decoder.hidden

    def counted(self: Decoder, tokens, positions, attend):
        found.append(len(tokens))
        return hidden(self, tokens, positions, attend)

    monkeypatch.setattr(Decoder, "hidden", counted)
    return found


def test_what_goes_on_from_a_finished_text_is_not_read_again(
    tmp_path: Path, num_read: list[int]
) -> None:
    """A question that is answered next, in a row of its own or in another's: most of the prompts
    that a run reads begin so."""
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_read: list[int]
) -> None:
    """128 prompts of 1,000 tokens at once would take gigabytes."""
    monkeypatch.setattr(generator, "READ_TOKENS", 25)
    model = llama_in(tmp_path)
    rng = np.random.default_rng(0)
    jobs = [Job(rng.integers(3, 300, 20).tolist(), 4, 0.0) for _ in range(8)]
    done = written(generator_for(model, 8), jobs)
    assert len(done) == 8
    assert 20 < max(num_read) <= 40 + 8


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
