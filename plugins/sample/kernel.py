"""The drafting kernel with its answers, and launches to try it with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from plugins.cuda.kernel import Case, Kernel, Trial
from plugins.law import kernel as law
from plugins.law.reference import LawParams, Sampling
from plugins.sample import sampled
from plugins.sample.args import (
    ARGS,
    BEST,
    BRACKETS,
    NUM_THREADS,
    SAMPLE,
    TAKE,
    Batch,
    num_bytes,
    outputs,
    values,
)
from plugins.sample.reference import sample
from plugins.sample.sampled import Drawn, Reshaping


def expected(batch: Batch) -> dict[str, npt.NDArray[Any]]:
    """The outputs by `plugins.sample.sampled`."""
    shapes = outputs(batch.num_rows, batch.num_candidates, batch.max_support)
    arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    arrays["candidates"][:] = arrays["q_ids"][:] = -1
    for row in range(batch.num_rows):
        drawn = draw(batch, row)
        arrays["sample"][row], arrays["status"][row] = drawn.token, drawn.status
        for name in ("candidates", "q_ids", "q_probs"):
            found = getattr(drawn, name)
            arrays[name][row, : found.size] = found
    return arrays


def draw(batch: Batch, row: int) -> Drawn:
    """What `plugins.sample.sampled` makes of row b * R + r."""
    sequence, place = divmod(row, batch.logits.shape[1])
    exclude = None if batch.exclude is None else int(batch.exclude[sequence, place])
    ids_map = None if batch.ids_map is None else batch.ids_map[: batch.vocab_size]
    common = (
        _as_float32(batch.logits[sequence, place, : batch.vocab_size]),
        batch.samplings[sequence],
        int(batch.positions[sequence, place]),
        batch.num_candidates,
        exclude,
        ids_map,
    )
    if batch.max_support == 0:
        return sampled.coupled(*common)
    reshaping = None if batch.reshapings is None else batch.reshapings[sequence]
    return sampled.ratio(*common, max_support=batch.max_support, reshaping=reshaping)


def _as_float32(logits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if logits.dtype == np.uint16:
        return (logits.astype(np.uint32) << 16).view(np.float32)
    return logits.astype(np.float32)


def make_case(batch: Batch, num_slices: int) -> Case:
    """A launch with its answer."""
    in_torch = _coupled_in_torch if batch.max_support == 0 else _ratio_in_torch
    return Case(values(batch, num_slices), expected(batch), rtol=1e-9, in_torch=in_torch)


def random_batch(
    rng: np.random.Generator,
    num_sequences: int,
    num_places: int,
    vocab_size: int,
    *,
    num_candidates: int,
    max_support: int = 0,
    reduced_from: int | None = None,
    params: LawParams | None = None,
    dtype: str = "float16",
) -> Batch:
    """Logits such as a language model's: a few tall ones above many that mean nothing.

    Args:
        reduced_from: the target's vocabulary, of which the draft has `vocab_size` ids.
    """
    shape = (num_sequences, num_places)
    logits = 2 * rng.standard_normal((*shape, vocab_size))
    tall = rng.integers(0, vocab_size, (*shape, 40))
    np.put_along_axis(logits, tall, rng.uniform(5, 16, tall.shape), -1)
    law_params = LawParams(temperature=1.0) if params is None else params
    chosen = None if reduced_from is None else np.sort(rng.permutation(reduced_from)[:vocab_size])
    return Batch(
        logits=logits.astype(dtype),
        samplings=[
            Sampling(law_params, seed=int(seed)) for seed in rng.integers(0, 2**63, num_sequences)
        ],
        positions=rng.integers(0, 32768, shape),
        num_candidates=num_candidates,
        max_support=max_support,
        ids_map=None if chosen is None else chosen.astype(np.int32),
        exclude=rng.integers(0, vocab_size, shape),
        reshapings=[Reshaping(num_candidates, 0.5)] * num_sequences if max_support else None,
    )


def _coupled_in_torch(fields: Mapping[str, Any]) -> object:
    """Noise from torch's own generator, and the best ids; nothing is cut or mapped."""
    logits = fields["logits"].float()
    noise = logits.new_empty(logits.shape).exponential_().log_().neg_()
    return noise.add_(logits).topk(fields["list_size"])


def _ratio_in_torch(fields: Mapping[str, Any]) -> object:
    """The likeliest ids, their law, and a draw; nothing is cut, mapped or reshaped."""
    best = fields["logits"].float().topk(fields["list_size"])
    law_of_best = best.values.flatten(0, 1).double().softmax(-1)
    return best.indices, law_of_best, law_of_best.multinomial(1)


def _sampled_trial(
    num_sequences: int,
    num_places: int,
    vocab_size: int,
    num_candidates: int,
    max_support: int = 0,
    reduced_from: int | None = None,
    params: LawParams | None = None,
) -> Trial:
    num_rows = num_sequences * num_places
    num_slices = law.slices_of(num_rows, vocab_size)

    def make(rng: np.random.Generator) -> Case:
        batch = random_batch(
            rng,
            num_sequences,
            num_places,
            vocab_size,
            num_candidates=num_candidates,
            max_support=max_support,
            reduced_from=reduced_from,
            params=params,
        )
        return make_case(batch, num_slices)

    size = num_bytes(
        num_rows,
        vocab_size,
        num_candidates=num_candidates,
        max_support=max_support,
        is_reduced=reduced_from is not None,
    )
    label = f"B={num_sequences} R={num_places} V={vocab_size} F={num_candidates}"
    label += f" M={max_support}" if max_support else ""
    label += f" of {reduced_from}" if reduced_from else ""
    if params is not None:
        label += f" top_k={params.top_k} top_p={params.top_p}"
        size += 2 * num_rows * vocab_size  # the first pass reads the logits too
    return Trial(
        label=label,
        entry=f"{SAMPLE}_f16",
        first=(f"{BRACKETS}_f16",) if params is not None else (),
        num_blocks=num_rows * num_slices,
        num_threads=NUM_THREADS,
        num_bytes=size,
        make=make,
    )


def _greedy_trial(num_rows: int, vocab_size: int) -> Trial:
    """The layer ssd::Sample."""
    num_slices = law.slices_of(num_rows, vocab_size)

    def make(rng: np.random.Generator) -> Case:
        logits = rng.standard_normal((1, num_rows, vocab_size), np.float32).astype(np.float16)
        layer_map = rng.permutation(vocab_size)
        (answer,) = sample(logits.astype(np.float32), layer_map)
        fields = ARGS.blank()
        fields |= {"num_sequences": 1, "rows_each": num_rows, "num_slices": num_slices}
        fields |= {"logits": logits, "pitch": vocab_size, "vocab_size": vocab_size}
        fields |= {"lists": np.zeros((num_rows, num_slices), np.uint64), "layer_map": layer_map}
        fields |= {"sample": np.zeros_like(answer)}
        return Case(fields, {"sample": answer}, in_torch=lambda each: each["logits"].argmax(-1))

    return Trial(
        label=f"greedy rows={num_rows} V={vocab_size}",
        entry=TAKE,
        first=(f"{BEST}_f16",),
        num_blocks=num_rows * num_slices,
        num_threads=NUM_THREADS,
        num_bytes=num_rows * (2 * vocab_size + 8 + 8),
        make=make,
    )


KERNEL = Kernel(
    name="sample",
    source=Path(__file__).with_name("kernel.cu"),
    args=ARGS,
    entries=(
        *(f"{name}_{each}" for name in (BRACKETS, SAMPLE, BEST) for each in law.SUFFIXES.values()),
        TAKE,
    ),
    trials=(
        _sampled_trial(1, 1, 128256, num_candidates=8),
        _sampled_trial(1, 1, 32000, num_candidates=8, max_support=128),
        _sampled_trial(2, 2, 8000, num_candidates=8, params=LawParams(1.0, 50, 0.9375)),
        _greedy_trial(3, 16000),
        _sampled_trial(16, 5, 128256, num_candidates=8),
        _sampled_trial(16, 5, 128256, num_candidates=8, max_support=128),
        _sampled_trial(16, 5, 128256, num_candidates=8, params=LawParams(1.0, 50, 0.9375)),
        _sampled_trial(64, 5, 32000, num_candidates=16, reduced_from=128256),
        _greedy_trial(80, 128256),
    ),
)
