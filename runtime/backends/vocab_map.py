"""The ids that a draft of reduced vocabulary speaks, in the target's ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engines.errors import BundleCorruptError
from engines.manifest import EngineManifest


def load_vocab_map(folder: Path, manifest: EngineManifest) -> np.ndarray | None:
    """The draft's own ids -> target ids, int64, checked; None when the vocabulary is whole."""
    if manifest.vocab_map is None:
        return None
    path = folder / manifest.vocab_map
    try:
        with path.open("rb") as file:
            ids = np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # a damaged header surfaces as whatever its bytes happen to break
        # Not its words: numpy advises to unpickle what it does not know.
        what = type(error).__name__
        raise BundleCorruptError(f"{path} is no array file ({what}); rebuild the bundle") from None
    model = manifest.model
    if ids.shape != (model.output_vocab,) or not np.issubdtype(ids.dtype, np.integer):
        raise BundleCorruptError(
            f"{path} holds {ids.dtype} {ids.shape}, not {model.output_vocab} ids; "
            "rebuild the bundle"
        )
    ids = np.asarray(ids, dtype=np.int64)
    if ids.min() < 0 or ids.max() >= model.vocab_size or len(np.unique(ids)) != len(ids):
        raise BundleCorruptError(
            f"{path} does not map to distinct ids below {model.vocab_size}; rebuild the bundle"
        )
    return ids
