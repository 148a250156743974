"""The first bytes of a TensorRT-RTX plan: which release wrote it, for which GPUs, how long it is.

Not documented; seen alike in releases 1.4, 1.5, 1.6 and 1.7. So a header that does not look as
expected says nothing, and one that does is only compared with what we know of the plan anyway.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

_MAGIC = b"vtrt"
_HEADER = struct.Struct("<4s12xQ4B4sQ")  # magic, bytes in all, release, version, magic, GPUs
_BITS = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")


@dataclass(frozen=True, slots=True)
class PlanHeader:
    """``capabilities`` holds only those whose bits are known."""

    version: str
    num_bytes: int
    capabilities: tuple[str, ...]


def read_header(plan: bytes) -> PlanHeader | None:
    """The header of a plan; None when it is not in the form that is known."""
    if len(plan) < _HEADER.size:
        return None
    magic, num_bytes, *rest = _HEADER.unpack_from(plan)
    release, again, gpus = rest[:4], rest[4], rest[5]
    if (magic, again) != (_MAGIC, _MAGIC):
        return None
    names = tuple(name for bit, name in enumerate(_BITS) if gpus >> bit & 1)
    return PlanHeader(".".join(map(str, release)), num_bytes, names)


def contradiction(plan: bytes, version: str, capabilities: Iterable[str]) -> str | None:
    """Where a plan that should be of ``version`` and for ``capabilities`` says otherwise.

    None when it agrees, or says nothing that can be relied on.
    """
    header = read_header(plan)
    if header is None or header.version != version:
        return None
    found, wanted = set(header.capabilities), set(capabilities)
    if header.num_bytes == len(plan) and found == wanted:
        return None
    return (
        f"a plan of {len(plan)} bytes for {' '.join(sorted(found))}, expected {header.num_bytes} "
        f"bytes for {' '.join(sorted(wanted))}"
    )
