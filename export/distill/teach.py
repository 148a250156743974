"""The target reads text it wrote earlier, for its states: what soft labels are made of."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from export.distill import shards
from export.distill.corpus import Sample, collate
from export.distill.llama import Llama
from export.distill.stop import Stop

SHARD_SEQUENCES = 32
BATCH_TOKENS = 4096  # padding included


def prefix_of(path: Path) -> str:
    """The prefix of the shards made from a data file: its content, not its name, decides."""
    return f"read-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def num_shards(samples: Sequence[Sample]) -> int:
    return -(-len(samples) // SHARD_SEQUENCES)


def read_text(
    target: Llama,
    samples: Sequence[Sample],
    folder: Path,
    prefix: str,
    stop: Stop,
    report: Callable[[float, int], None] = lambda *_: None,
) -> None:
    """Add the shards of ``samples`` that ``folder`` lacks. Asked to stop, it returns early.

    ``report`` gets the share that is done and the tokens read by this call.
    """
    present = set(shards.names(folder, prefix))
    parts = range(0, len(samples), SHARD_SEQUENCES)
    num_tokens = 0
    for number, start in enumerate(parts):
        name = f"{prefix}-{number:05d}"
        if name in present:
            continue
        part = samples[start : start + SHARD_SEQUENCES]
        taught: list[Sample | None] = [None] * len(part)
        for group in _groups(part):
            if stop:
                return
            for index, states in zip(group, _states(target, [part[i] for i in group]), strict=True):
                taught[index] = replace(part[index], states=states)
                num_tokens += len(states)
            report((number + len(part) / SHARD_SEQUENCES) / len(parts), num_tokens)
        shards.write(folder, name, [sample for sample in taught if sample is not None])


def _groups(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices in batches of like length, BATCH_TOKENS at most with their padding."""
    groups: list[list[int]] = [[]]
    for index in sorted(range(len(samples)), key=lambda i: len(samples[i])):
        if groups[-1] and (len(groups[-1]) + 1) * len(samples[index]) > BATCH_TOKENS:
            groups.append([])
        groups[-1].append(index)
    return groups


def _states(target: Llama, samples: Sequence[Sample]) -> list[npt.NDArray[np.float16]]:
    import torch

    with torch.inference_mode():
        tokens = torch.from_numpy(collate(samples).tokens).to(target.device)
        hidden = target.hidden(tokens).half().cpu().numpy()
    return [hidden[row, : len(sample)] for row, sample in enumerate(samples)]
