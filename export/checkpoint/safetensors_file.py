"""One safetensors file, read tensor by tensor through the ``safetensors`` package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.weights import advice_on
from export.packages import require

FLOATS = ("F32", "F16", "BF16")
INTEGERS = ("I64", "I32", "BOOL")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies and how it is stored."""

    path: Path
    dtype: str
    shape: tuple[int, ...]


def table(path: Path) -> dict[str, StoredTensor]:
    """All tensors of a file, by name. Raises CheckpointError for a damaged file."""
    with _opened(path) as file:
        names = file.keys()
        found = {name: file.get_slice(name) for name in names}
        return {
            name: StoredTensor(path, view.get_dtype(), tuple(view.get_shape()))
            for name, view in found.items()
        }


def check_readable(name: str, stored: StoredTensor) -> None:
    """Raise UnsupportedModelError for a weight in a type that ``read_floats`` cannot read."""
    if stored.dtype not in FLOATS:
        raise UnsupportedModelError(
            f"{stored.path}: {name} is stored as {stored.dtype}, which cannot be read; "
            f"readable are {', '.join(FLOATS)}"
        )


def read_floats(name: str, stored: StoredTensor) -> npt.NDArray[np.float32]:
    """A floating-point tensor as a new float32 array."""
    check_readable(name, stored)
    if stored.dtype == "BF16":
        return _read_bfloat16(name, stored)
    return _read(name, stored).astype(np.float32, copy=False)


def read_integers(name: str, stored: StoredTensor) -> npt.NDArray[np.int64]:
    """An integer or bool tensor as a new int64 array."""
    if stored.dtype not in INTEGERS:
        raise CheckpointError(
            f"{stored.path}: {name} must be one of {', '.join(INTEGERS)}, found {stored.dtype}"
        )
    return _read(name, stored).astype(np.int64, copy=False)


def _read(name: str, stored: StoredTensor) -> npt.NDArray[Any]:
    with _opened(stored.path) as file:
        array: npt.NDArray[Any] = file.get_tensor(name)
        return array


def _read_bfloat16(name: str, stored: StoredTensor) -> npt.NDArray[np.float32]:
    """numpy has no bfloat16, so the library cannot hand one out: the upper half of a float32."""
    with stored.path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        start, _ = json.loads(file.read(header_size))[name]["data_offsets"]
    count = int(np.prod(stored.shape, dtype=np.int64))
    bits = np.fromfile(stored.path, dtype="<u2", count=count, offset=8 + header_size + start)
    if bits.size != count:
        raise CheckpointError(f"{stored.path}: the file ends inside {name}")
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32).reshape(stored.shape)


def _opened(path: Path) -> Any:
    """The library's handle; opening checks the header against the size of the file."""
    purpose, names = "reading a safetensors checkpoint", ("SafetensorError", "safe_open")
    safetensors = require("safetensors", "safetensors", "export", purpose, names)
    try:
        path.open("rb").close()  # the library calls every file that it may not read absent
        return safetensors.safe_open(path, framework="np")
    except (safetensors.SafetensorError, OSError) as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        hint = advice_on(path) if isinstance(error, safetensors.SafetensorError) else ""
        raise CheckpointError(f"{path}: not a whole safetensors file ({reason}){hint}") from None
