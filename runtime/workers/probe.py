"""Do an engine's rows round alike, whatever call they are in? Asked when a bundle is loaded.

Speculation is exact only if a token's logits do not depend on how many tokens its call has, on
what the other rows hold, on how many texts share the call, or on how many cache rows are bound.
The algebra cannot promise that; kernels decide it. So a few real calls are compared bit by bit.

On the CPU all of it holds, and is required (`probe_invariance`). On a GPU the libraries choose a
kernel by the shape of a call, so how far it holds is found out (`measure_invariance`): calls that
round by their width are all made equally wide, and the rest is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from engines.errors import BackendError
from runtime.backends.api import CallShape, Session
from runtime.kv.layout import SlotLayout
from runtime.workers.calls import fill_trunk
from runtime.workers.prefill import prefill

CONTEXT = 24


WITH_PLACE = "a token's place in its call"
WITH_TEXTS = "the number of texts in a call"
WITH_ROWS = "the cache rows that are bound"


@dataclass(frozen=True, slots=True)
class Invariance:
    """Calls of at least ``min_tokens`` tokens round alike: 1 where all do, 2 when just a one-token
    call rounds differently. ``varies_with`` is what else the rounding hangs on."""

    min_tokens: int
    varies_with: tuple[str, ...] = ()

    @property
    def note(self) -> str | None:
        """For the user; None where every mode and batch gives the same tokens."""
        if not self.varies_with:
            return None
        return (
            f"the target's rounding depends on {' and '.join(self.varies_with)}: where two tokens "
            "are almost equally likely, a text may differ between modes or with what runs beside it"
        )


def probe_invariance(session: Session, num_tokens: int, num_slots: int = 1) -> Invariance:
    """Compare calls of 1 to ``num_tokens`` (K + 1) tokens, and of 1, 2 and ``num_slots`` texts, at
    the first and the last place of the call. Runs on the session's stream.

    Raises BackendError when rows depend on their neighbours, on the number of tokens beyond one,
    on the number of texts or on the bound cache rows: such a target cannot be verified
    losslessly. The caches' contents are void afterwards.
    """
    probe = _Probe(session)
    width = max(2, num_tokens)
    reference = _independent_rows(probe, width)
    for count in range(2, width):
        found = probe.logits(probe.tokens[:count])
        _require_equal(found, reference[:count], f"{count} tokens", width)
    alone = np.vstack([probe.logits(probe.tokens[i : i + 1], skip=i) for i in range(2)])
    single_differs = not np.array_equal(alone, reference[:2])
    for batch in sorted({2, num_slots}) if num_slots > 1 else ():
        probe.copy_to(batch - 1)
        for count in (width,) if single_differs else (1, width):
            for place in (0, batch - 1):
                found = probe.logits(probe.tokens[:count], num_slots=batch, place=place)
                _require_equal(found, reference[:count], f"{batch} texts (--max-batch)", width)
    session.bind_rows(session.manifest.kv.rows)
    _require_equal(probe.logits(probe.tokens[:width]), reference, "more cache rows", width)
    session.reset_rows()
    return Invariance(min_tokens=2 if single_differs else 1)


def measure_invariance(session: Session, num_tokens: int, num_slots: int = 1) -> Invariance:
    """As `probe_invariance`, but what differs is answered and not refused.

    Raises BackendError only where rows depend on what their neighbours hold: no padding helps then.
    """
    probe = _Probe(session)
    width = max(2, num_tokens)
    reference = _independent_rows(probe, width)
    differing = {
        count
        for count in range(1, width)
        if not np.array_equal(probe.logits(probe.tokens[:count]), reference[:count])
    }
    least = width if differing - {1} else 2 if differing else 1
    varies_with = []
    if any(
        not np.array_equal(probe.logits(probe.padded(place, least), skip=place)[0], row)
        for place, row in enumerate(reference)
    ):
        varies_with.append(WITH_PLACE)
    if any(
        not np.array_equal(found, reference[: len(found)])
        for batch in sorted({2, num_slots} if num_slots > 1 else ())
        for found in probe.in_company(batch, sorted({least, width}))
    ):
        varies_with.append(WITH_TEXTS)
    session.bind_rows(session.manifest.kv.rows)
    if not np.array_equal(probe.logits(probe.tokens[:width]), reference):
        varies_with.append(WITH_ROWS)
    session.reset_rows()
    return Invariance(least, tuple(varies_with))


def _independent_rows(probe: _Probe, width: int) -> np.ndarray:
    """The logits [width, V] of a call of that width. BackendError where they hang on each other."""
    reference = probe.logits(probe.tokens[:width])
    other = probe.tokens[:width].copy()
    other[1:] = probe.others[1:width]
    if not np.array_equal(probe.logits(other)[0], reference[0]):
        raise BackendError(
            "the target's rows depend on each other (quantised per call?), so verification would "
            "not give plain decoding's tokens; rebuild with --precision int8 or fp32"
        )
    return reference


def _require_equal(found: np.ndarray, expected: np.ndarray, what: str, width: int) -> None:
    if not np.array_equal(found, expected):
        gap = float(np.abs(found - expected).max())
        raise BackendError(
            f"the target's logits differ by {gap:.2g} between a call of {width} tokens and one "
            f"with {what}, so verification would not give plain decoding's tokens; try another "
            "backend or precision"
        )


class _Probe:
    """A short text in slot 0, copied where it is asked for, and calls that continue it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.layout = SlotLayout(session.manifest.kv, 0)
        vocab = session.manifest.model.vocab_size
        draw = np.random.default_rng(20260303).integers
        self.tokens = draw(0, vocab, 64)
        self.others = (self.tokens + 1) % vocab
        session.reset_rows()
        self.held = {0}
        self.context = min(CONTEXT, session.manifest.limits.max_len // 2)
        prefill(session, self.layout, 0, draw(0, vocab, self.context).tolist())

    def copy_to(self, slot: int) -> None:
        """Let ``slot`` hold the same text."""
        self.session.bind_rows(self.layout.rows_for(self.context))
        self.session.copy_slot(0, slot, self.layout.trunk_rows(self.context))
        self.held.add(slot)

    def padded(self, place: int, width: int) -> np.ndarray:
        """The text's token at ``place``, and zeros behind it."""
        call = np.zeros(width, self.tokens.dtype)
        call[0] = self.tokens[place]
        return call

    def in_company(self, batch: int, widths: Sequence[int]) -> Iterator[np.ndarray]:
        """Logits of calls of these widths in which ``batch`` texts take part, this one first and
        last."""
        self.copy_to(batch - 1)
        for width in widths:
            for place in (0, batch - 1):
                yield self.logits(self.tokens[:width], num_slots=batch, place=place)

    def logits(
        self, tokens: np.ndarray, skip: int = 0, num_slots: int = 1, place: int = 0
    ) -> np.ndarray:
        """Logits [T, V] of ``tokens`` as the text's continuation from ``skip`` tokens on, in slot
        ``place``; the other slots of the call go on with other tokens, or begin with them."""
        session, layout, start = self.session, self.layout, self.context + skip
        width = len(tokens)
        session.bind_rows(layout.rows_for(start + width))
        step = session.prepare(CallShape(0, num_slots, width, width))
        for slot in range(num_slots):
            fed = tokens if slot == place else self.others[slot : slot + width]
            fill_trunk(step, slot, layout, start if slot in self.held else 0, fed.tolist())
        step.logit_rows[:] = np.arange(width)
        step.num_draft[:] = 0
        step.run()
        return np.array(step.logits[place])
