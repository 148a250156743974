"""Files of samples, as a user would give them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from export.distill.corpus import Sample


def write_npz(path: Path, samples: list[Sample]) -> Path:
    np.savez(
        path,
        ids=np.concatenate([sample.ids for sample in samples]).astype(np.uint16),
        lens=np.array([len(sample) for sample in samples], np.int32),
        answer_start=np.array([sample.answer_start for sample in samples], np.int32),
        temperature=np.array([sample.temperature for sample in samples], np.float32),
    )
    return path
