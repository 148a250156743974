"""What a replica sends of a text: where it began, what came of it, how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import engines.errors
from engines.errors import BackendError, DeviceError, SsdError
from runtime.completion import Completion, Delta
from runtime.serve.rounds import RoundLog
from runtime.settings import Settings
from runtime.spec.fallback import ProposalKind
from runtime.spec.plan import RoundReport

ENGINE_ERRORS = (BackendError, DeviceError)
"""What another replica may not meet."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is loaded in a replica; alike in all of them. ``settings`` without what decides from
    round to round, which stays where it is."""

    settings: Settings
    mode: str
    note: str | None
    max_banned_ids: int | None
    follows_text: bool


@dataclass(frozen=True, slots=True)
class Begun:
    """The replica has the request."""

    replica: str


@dataclass(frozen=True, slots=True)
class Counts:
    """A replica's ``RoundLog`` so far: the same names, and ``by_kind`` for its proposals."""

    rounds_by_mode: Mapping[str, int]
    by_kind: Mapping[ProposalKind, int]
    accepted_at: tuple[int, ...]
    num_drafts: int
    num_draft_tokens: int
    num_discarded: int
    verify_s: float
    hidden_s: float
    exposed_s: float
    last: RoundReport | None

    @classmethod
    def of(cls, log: RoundLog) -> Counts:
        return cls(
            rounds_by_mode=dict(log.rounds_by_mode),
            by_kind={kind: log.proposals[kind.name.lower()] for kind in ProposalKind},
            accepted_at=tuple(log.accepted_at),
            num_drafts=log.num_drafts,
            num_draft_tokens=log.num_draft_tokens,
            num_discarded=log.num_discarded,
            verify_s=log.verify_s,
            hidden_s=log.hidden_s,
            exposed_s=log.exposed_s,
            last=log.last,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """The text is complete; and what its replica has done up to now, for all of its texts, and is
    now: ``note`` says what is not as it was asked for."""

    completion: Completion
    counts: Counts
    has_lost_draft: bool
    note: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """What stopped the text, by the class of ``engines.errors``: exceptions of a replica reach
    its callers wrapped, with a traceback for a message."""

    kind: str
    message: str

    @classmethod
    def by(cls, error: SsdError) -> Failed:
        return cls(type(error).__name__, str(error))

    def as_error(self) -> SsdError:
        kind = getattr(engines.errors, self.kind, None)
        if (
            isinstance(kind, type)
            and issubclass(kind, SsdError)
            and not issubclass(kind, ImportError)
        ):
            return kind(self.message)
        return SsdError(self.message)


Message: TypeAlias = Begun | Delta | Ended | Failed


class FleetRounds(RoundLog):
    """The sums of all replicas. Single rounds stay with them: a fleet has no one last round but
    the one that it heard of last."""

    def __init__(self) -> None:
        super().__init__(num_draft=0)
        self._known: dict[str, Counts] = {}

    def piece(self, num_tokens: int) -> None:
        """Tokens have come, from any replica."""
        self.num_emitted += num_tokens
        self._count(int(self.now_s), num_tokens)

    def take(self, replica: str, counts: Counts) -> None:
        """What a replica has done since it was heard of last is added. What one did that was lost
        stays: counters never fall."""
        known = self._known.get(replica)
        self._known[replica] = counts
        old_modes = Counter(known.rounds_by_mode if known else {})
        old_kinds = known.by_kind if known else {}
        old_places = known.accepted_at if known else ()
        for mode, num in counts.rounds_by_mode.items():
            self.rounds_by_mode[mode] += max(0, num - old_modes[mode])
        for kind, num in counts.by_kind.items():
            self._by_kind[kind] += max(0, num - old_kinds.get(kind, 0))
        self.accepted_at += [0] * (len(counts.accepted_at) - len(self.accepted_at))
        for place, num in enumerate(counts.accepted_at):
            old = old_places[place] if place < len(old_places) else 0
            self.accepted_at[place] += max(0, num - old)
        for name in (
            "num_drafts",
            "num_draft_tokens",
            "num_discarded",
            "verify_s",
            "hidden_s",
            "exposed_s",
        ):
            grown = getattr(counts, name) - (getattr(known, name) if known else 0)
            setattr(self, name, getattr(self, name) + max(0, grown))
        self.last = counts.last or self.last
