"""The exactness probe at loading, and its answer from last time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from engines.codec import DecodeError, decode, encode
from runtime.backends.api import Session
from runtime.device.api import Stream
from runtime.memo import Memo
from runtime.workers.probe import Invariance, measure_invariance, probe_invariance
from runtime.workers.row_probe import rows_are_alike


def on_stream(stream: Stream, work: Callable[[], None], label: str) -> None:
    """Run ``work`` on a stream and wait for it; its error is raised here."""
    stream.launch(work, label=label)
    stream.sync()


def remembered_probe(
    stream: Stream,
    session: Session,
    memo: Memo,
    *,
    build_key: str,
    executor: str,
    num_tokens: int,
    num_slots: int,
    is_strict: bool = True,
) -> Invariance:
    """The probe's answer for calls of up to ``num_tokens`` (K + 1) tokens and ``num_slots`` texts.

    Remembered for this build and ``executor``, which says all that decides how kernels round.
    Raises BackendError for a target that cannot be verified losslessly; that is not remembered.
    ``is_strict``: whether one that hangs on shapes is such a target (`probe_invariance`), or
    answered as what it is (`measure_invariance`).
    """
    key = ":".join(
        (
            "invariance at both ends of a call",
            build_key,
            executor,
            f"{num_tokens} tokens",
            f"{num_slots} texts",
        )
    )
    known = _recalled(memo.get(key), 2 if is_strict else max(2, num_tokens))
    if known is not None:
        return known
    probe = probe_invariance if is_strict else measure_invariance
    found: list[Invariance] = []
    on_stream(stream, lambda: found.append(probe(session, num_tokens, num_slots)), "probe")
    memo.put(key, encode(found[0]) if found[0].varies_with else found[0].min_tokens)
    return found[0]


def remembered_rows(
    stream: Stream,
    session: Session,
    memo: Memo,
    *,
    build_key: str,
    executor: str,
    num_tokens: int,
    min_tokens: int,
) -> bool:
    """Whether the rows that one call leaves are those that another would (`rows_are_alike`).

    Remembered as the probe's answer is.
    """
    key = f"rows by any call:{build_key}:{executor}:{min_tokens} to {num_tokens} tokens"
    known = memo.get(key)
    if isinstance(known, bool):
        return known
    found: list[bool] = []

    def probe() -> None:
        found.append(rows_are_alike(session, num_tokens, min_tokens=min_tokens))

    on_stream(stream, probe, "probe rows")
    memo.put(key, found[0])
    return found[0]


def _recalled(known: object, most: int) -> Invariance | None:
    """What a memo's entry says; None for one that says nothing."""
    if isinstance(known, int) and not isinstance(known, bool) and 1 <= known <= most:
        return Invariance(min_tokens=known)
    if most > 2 and isinstance(known, dict):
        with suppress(DecodeError):
            return decode(Invariance, known)
    return None
