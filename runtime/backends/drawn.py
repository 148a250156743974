"""A pair of backends whose outcomes are drawn from a law and whose calls take prescribed times.

The real workers run over it: they draft, prepare, look up and fall back as over any pair, and meet
the outcomes that the law says. The draft's candidates are the same everywhere, so an id says what
it is:

    id             means
    -------------  ---------------------------------------------------------------------------
    NEXT           the draft's first choice on the trunk: in a root pass, or just in time
    AHEAD          its first choice in a branch, ahead of an outcome
    2, 3, ...      the candidates behind its first choice, in order of rank
    the last id    what is no candidate of the draft at all

A target asks its law for (accepted, rank) once for each row it judges. By the first drafted token
it sees whether the proposal had been prepared ahead (AHEAD) or was drafted once its outcome was
known (NEXT): the two are accepted by laws of their own. Rows are greedy, prompts one token long:
the text of a prompt would be drawn for, too. Texts that are copied from (the ``lookup`` fallback)
would have to mean something, and do not.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Protocol, TypeAlias

import numpy as np

from engines.errors import BackendError
from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.api import CallShape
from runtime.backends.caches import RowBuckets
from runtime.backends.host import HostSession
from runtime.backends.toy import toy_manifest
from runtime.device.api import Device

NEXT, AHEAD, BEHIND = range(3)
"""Ids; see the module's table. BEHIND is the first of those behind the first choice."""

CallTime: TypeAlias = Callable[[CallShape], float]
"""Seconds that a call of that shape takes."""
Pace: TypeAlias = Callable[[float, float], float]
"""Called with (when the call began by ``perf_counter``, seconds that it takes); returns when they
are over, on whatever clock: how many seconds too late because a sleep is not exact."""


class Law(Protocol):
    """What comes out of a row's round."""

    def draw(self, num_drafted: int, *, ahead: bool) -> tuple[int, int | None]:
        """(accepted drafts, rank of the bonus token among the draft's candidates, None beyond all
        of them) of a row with that many drafts, prepared ``ahead`` or not."""


class _DrawnSession(HostSession["DrawnStep"]):
    """Caches that are real and moved as asked, but that no call reads."""

    def __init__(
        self,
        role: str,
        limits: Limits,
        device: Device,
        num_ranks: int,
        call_s: CallTime,
        pace: Pace,
    ) -> None:
        self.num_ids = BEHIND + num_ranks + 1
        manifest = toy_manifest(role, self.num_ids, self.num_ids, limits)
        self.manifest = replace(manifest, backend="drawn")
        self.vocab_map: np.ndarray | None = None
        self._call_s = call_s
        self._pace = pace
        self._late_s = 0.0
        super().__init__(RowBuckets(device, self.manifest, limits.max_batch))

    def run_step(self, step: DrawnStep) -> None:
        """Answer one call, and let it take its time; the answering counts towards it.

        The engine keeps a time of its own, which lags behind by as much as its last sleep ended
        too late: an engine that computes has no such error, and over the K steps of a draft it
        would add up. All that the runtime does between two calls counts in full, as it does
        before an engine that runs in the caller's thread. A GPU's queue would hide some of it.
        """
        began = perf_counter() - self._late_s
        if int(step.write_at.max()) + step.shape.num_tokens > self._caches.rows:
            self._caches.zero()
            raise BackendError(f"{self.manifest.role}: a write leaves the cache")
        self._answer(step)
        self._late_s = self._pace(began, self._call_s(step.shape))

    @abstractmethod
    def _answer(self, step: DrawnStep) -> None:
        """Fill in the outputs of one call."""

    def _make_step(self, shape: CallShape) -> DrawnStep:
        slots, tokens, rows = shape.num_slots, shape.num_tokens, shape.num_logits
        return DrawnStep(
            shape=shape,
            tokens=np.zeros((slots, tokens), np.int64),
            positions=np.zeros((slots, tokens), np.int64),
            write_at=np.zeros(slots, np.int64),
            mask=np.zeros((slots, tokens, self._caches.rows), bool),
            logit_rows=np.zeros((slots, rows), np.int64),
            num_draft=np.zeros(slots, np.int64),
            logits=np.zeros((slots, rows, self.num_ids), np.float32),
            accepted=np.zeros(slots, np.int64),
            next=np.zeros(slots, np.int64),
            sample=np.zeros((slots, rows), np.int64),
            _session=self,
        )


class DrawnDraft(_DrawnSession):
    """See ``runtime.backends.api.Session``. Its ``num_ranks`` first candidates are told apart."""

    def __init__(
        self, limits: Limits, device: Device, num_ranks: int, call_s: CallTime, pace: Pace
    ) -> None:
        super().__init__(DRAFT, limits, device, num_ranks, call_s, pace)
        ranking = -np.arange(self.num_ids, dtype=np.float32)
        self._on_trunk = ranking.copy()
        self._on_trunk[AHEAD] = ranking[-1] - 1
        self._in_branch = self._on_trunk.copy()
        self._in_branch[[NEXT, AHEAD]] = self._on_trunk[[AHEAD, NEXT]]

    def _answer(self, step: DrawnStep) -> None:
        in_branch = int(step.write_at[0]) < self.manifest.kv.scratch_rows
        if step.in_branch is not in_branch:
            step.in_branch = in_branch
            step.logits[:] = self._in_branch if in_branch else self._on_trunk
            step.sample[:] = AHEAD if in_branch else NEXT


class DrawnTarget(_DrawnSession):
    """See ``runtime.backends.api.Session``, but for this: every call draws anew, so a call that is
    made twice need not give the same answer. ``law`` is asked in the order of the rows."""

    def __init__(
        self,
        limits: Limits,
        device: Device,
        num_ranks: int,
        call_s: CallTime,
        pace: Pace,
        law: Law,
    ) -> None:
        super().__init__(TARGET, limits, device, num_ranks, call_s, pace)
        self._law = law

    def _answer(self, step: DrawnStep) -> None:
        step.logits[:] = 0
        counts: list[int] = step.num_draft.tolist()
        for row, count in enumerate(counts):
            drafts: list[int] = step.tokens[row, 1 : 1 + count].tolist()
            accepted, rank = self._law.draw(count, ahead=drafts[:1] == [AHEAD])
            bonus = self._token(rank, all_accepted=accepted == count)
            step.accepted[row], step.next[row] = accepted, bonus
            chosen = [*drafts[:accepted], bonus]
            step.logits[row, range(len(chosen)), chosen] = 1.0

    def _token(self, rank: int | None, *, all_accepted: bool) -> int:
        """The candidate of that rank: where all were accepted the first choice is one of them,
        elsewhere it was just rejected."""
        if rank is None or rank >= self.num_ids - BEHIND - 1:
            return self.num_ids - 1
        if not all_accepted:
            return BEHIND + rank
        return NEXT if rank == 0 else BEHIND + rank - 1


@dataclass(slots=True)
class DrawnStep:
    """See ``runtime.backends.api.Step``. ``in_branch``: what kind of call its constant outputs are
    those of; None before the first."""

    shape: CallShape
    tokens: np.ndarray
    positions: np.ndarray
    write_at: np.ndarray
    mask: np.ndarray
    logit_rows: np.ndarray
    num_draft: np.ndarray
    logits: np.ndarray
    accepted: np.ndarray
    next: np.ndarray
    sample: np.ndarray
    _session: _DrawnSession
    in_branch: bool | None = None

    def run(self) -> None:
        self._session.run_step(self)
