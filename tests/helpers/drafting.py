"""Random batches of draft logits, launches of the drafting kernel, and how far it may be off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from plugins.cuda.host import HostKernel
from plugins.law.reference import LawParams, Sampling, adjusted, survivors
from plugins.noise.reference import gumbel
from plugins.sample import args
from plugins.sample.args import Batch
from plugins.sample.kernel import expected as expected_of
from plugins.sample.sampled import Reshaping
from plugins.verify.sampled import MAX_SCALE
from tests.helpers.sampling_cases import (
    as_float32,
    float32,
    random_bans,
    random_edits,
    random_logits,
    random_params,
    with_penalties,
)

DTYPES = ("float32", "float16", "uint16")
GREEDY, COUPLED, RATIO = "greedy", "coupled", "ratio"
RULES = (GREEDY, COUPLED, RATIO)
SUPPORTS = (1, 2, 7, 128)
SCALES = (0.0, 0.05, 0.5, 1.0)
OUTPUTS = ("sample", "candidates", "q_ids", "q_probs", "status")


@dataclass(frozen=True)
class Grid:
    """How a launch is cut up; results must not depend on it."""

    num_slices: int = 1
    num_threads: int = 1
    num_concurrent: int = 1


def random_grid(rng: np.random.Generator) -> Grid:
    """Mostly one thread: on a host, large blocks cost most of the time."""
    num_threads = rng.choice([1] * 16 + [2, 2, 3, 8])
    return Grid(int(rng.integers(1, 5)), int(num_threads), int(rng.integers(1, 3)))


def random_batch(rng: np.random.Generator, rule: str) -> Batch:
    """Ties, masks, one-hot rows, padding, reduced vocabularies, damaged rows; of the sampled rules'
    sequences a fifth and more are greedy."""
    num_sequences, num_places = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    vocab_size = int(rng.choice([1, 2, 7, 8, 9, 60, 300, 900]))
    pitch = vocab_size + int(rng.choice([0, 0, 3, 8]))
    logits = random_logits(rng, (num_sequences, num_places, pitch), str(rng.choice(DTYPES)))
    logits[..., vocab_size:] = 0x7F80 if logits.dtype == np.uint16 else np.inf  # nobody may look
    if logits.dtype != np.uint16 and rng.random() < 0.05:
        logits[0, 0, rng.integers(vocab_size)] = rng.choice([np.nan, -np.nan, np.inf])
    max_support = int(rng.choice(SUPPORTS))
    if rule == COUPLED or (rule == GREEDY and rng.random() < 0.5):
        max_support = 0
    shape = (num_sequences, num_places)
    ids_map = None
    if rng.random() < 0.5:
        ids_map = rng.permutation(2 * pitch)[:pitch].astype(np.int32)
    first = int(rng.integers(0, 2**40))
    return Batch(
        logits=logits,
        samplings=_samplings(rng, rule, num_sequences, vocab_size, first),
        positions=first + rng.integers(0, 3, shape),
        num_candidates=int(rng.choice([0, 1, 4, 9, 64])),
        max_support=max_support,
        vocab_size=vocab_size if pitch > vocab_size else None,
        ids_map=ids_map,
        exclude=rng.integers(-1, vocab_size, shape) if rng.random() < 0.7 else None,
        reshapings=[
            Reshaping(int(rng.choice([0, 1, 3, 9])), float32(rng.choice(SCALES)))
            for _ in range(num_sequences)
        ]
        if rng.random() < 0.6
        else None,
    )


def _samplings(
    rng: np.random.Generator, rule: str, num_sequences: int, vocab_size: int, position: int
) -> list[Sampling]:
    truncates, has_edits = rng.random() < 0.6, rng.random() < 0.2

    def sampling() -> Sampling:
        params = random_params(rng)
        if not truncates:
            params = LawParams(params.temperature)
        if rule == GREEDY or rng.random() < 0.2:
            params = LawParams(0.0, params.top_k, params.top_p, params.min_p)
        seed = int(rng.integers(0, 2**64, dtype=np.uint64))
        bans = random_bans(rng, vocab_size, position)
        if not has_edits:
            return Sampling(params, seed, **bans)
        edits = random_edits(rng, vocab_size)
        return Sampling(with_penalties(rng, params), seed, edits=edits, **bans)

    return [sampling() for _ in range(num_sequences)]


def launch(compiled: HostKernel, batch: Batch, grid: Grid = Grid()) -> dict[str, np.ndarray]:
    """The outputs; whatever the memory holds before must not matter, tickets apart."""
    values = args.values(batch, grid.num_slices)
    for name in [each.name for each in args.ARGS.fields if getattr(each, "is_output", False)]:
        if values[name] is not None and name != "tickets":
            values[name].view(np.uint8)[...] = 0xA5
    entries = [args.BRACKETS, args.SAMPLE] if batch.truncates else [args.SAMPLE]
    for entry in entries:
        launch_entry(compiled, f"{entry}_{batch.suffix}", values, batch.num_rows, grid)
    assert not values["tickets"].any()
    return {name: values[name] for name in OUTPUTS}


def launch_entry(
    compiled: HostKernel, entry: str, values: dict[str, Any], num_rows: int, grid: Grid
) -> None:
    compiled.launch(
        entry,
        values,
        num_blocks=num_rows * grid.num_slices,
        num_threads=grid.num_threads,
        num_concurrent=grid.num_concurrent,
    )


def differences(batch: Batch, found: dict[str, np.ndarray]) -> list[str]:
    """Rows in which the kernel differs from numpy, beyond what `is_close` allows."""
    expected = expected_of(batch)
    return [
        f"row {row}: {name} is {found[name][row]}, expected {expected[name][row]}"
        for row in range(batch.num_rows)
        for name in OUTPUTS
        if not _agree(found[name][row], expected[name][row])
        and not is_close(batch, row, found, expected)
    ]


def _agree(found: Any, expected: Any) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-12, atol=1e-300))


def is_close(
    batch: Batch, row: int, found: dict[str, np.ndarray], expected: dict[str, np.ndarray]
) -> bool:
    """Whether a row's lists differ only in ids between which rounding decides.

    The noise goes through two logarithms, which libraries round differently. Cuts sum weights of
    float32. And kernels make no cut among weights below 2**-64 of the largest.
    """
    sequence, place = divmod(row, batch.logits.shape[1])
    sampling = batch.samplings[sequence]
    params = sampling.params
    logits = as_float32(batch.logits[sequence, place])[: batch.vocab_size]
    banned = sampling.banned_at(int(batch.positions[sequence, place]))
    adjusted_row = adjusted(logits, params, sampling.edits, banned=banned)
    if params.temperature == 0 or not np.isfinite(adjusted_row.max()):
        return False
    if cut_hangs_on_rounding(adjusted_row, params):
        return True
    if batch.max_support > 0:
        return False
    targets = np.arange(logits.size) if batch.ids_map is None else batch.ids_map[: logits.size]
    noise = gumbel(sampling.seed, int(batch.positions[sequence, place]), int(targets.max()) + 1)
    spread = min(params.temperature, MAX_SCALE) * noise[targets].astype(np.float64)
    scores = dict(zip(targets.tolist(), adjusted_row + spread, strict=True))
    heights = dict(
        zip(targets.tolist(), (adjusted_row - adjusted_row.max()) / params.temperature, strict=True)
    )
    margin = 1e-5 * (1 + np.abs(spread).max())
    pairs = [(int(found["sample"][row]), int(expected["sample"][row]))]
    pairs += zip(
        found["candidates"][row].tolist(), expected["candidates"][row].tolist(), strict=True
    )
    return all(
        a == b
        or abs(scores[a] - scores[b]) <= margin
        or (params.top_k > 0 and max(heights[a], heights[b]) < -64 * np.log(2))
        for a, b in pairs
    )


def cut_hangs_on_rounding(row: np.ndarray, params: LawParams) -> bool:
    """Whether the sum at which top_p cuts lies within the rounding of float32 of its bound."""
    if params.top_p == 1 or params.temperature == 0:
        return False
    kept = survivors(row, LawParams(params.temperature, params.top_k))
    order = kept[np.lexsort((kept, -row[kept]))]
    with np.errstate(over="ignore"):
        weights = np.exp((row[order].astype(np.float64) - row.max()) / params.temperature)
    mass = weights.cumsum() / weights.sum()
    return bool(np.abs(mass - params.top_p).min() < 1e-5)
