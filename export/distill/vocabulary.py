"""The reduced vocabulary of a draft: which target ids it can propose, and the map to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from export.distill.corpus import Sample


def choose_ids(
    samples: Sequence[Sample], vocab_size: int, num_ids: int, always: Iterable[int]
) -> npt.NDArray[np.int64]:
    """Return ``num_ids`` target ids in ascending order, [num_ids].

    First ``always`` (end-of-text ids), then the most frequent ids of the answers, then of whole
    sequences, then low ids: byte-pair vocabularies number their merges by corpus frequency.
    """
    answers = np.zeros(vocab_size, np.int64)
    everything = np.zeros(vocab_size, np.int64)
    for sample in samples:
        np.add.at(answers, sample.ids[sample.answer_start :], 1)
        np.add.at(everything, sample.ids, 1)
    forced = np.zeros(vocab_size, bool)
    forced[list(always)] = True
    by_use = np.lexsort((np.arange(vocab_size), -everything, -answers, ~forced))
    return np.sort(by_use[:num_ids]).astype(np.int64)


def offsets(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The stored map d2t: target id = draft id + d2t[draft id], [num_ids]."""
    return ids - np.arange(len(ids))


def to_draft(ids: npt.NDArray[np.int64], vocab_size: int) -> npt.NDArray[np.int64]:
    """Table [vocab_size] from target id to draft id, -1 where the draft cannot propose it."""
    table = np.full(vocab_size, -1, np.int64)
    table[ids] = np.arange(len(ids))
    return table
