"""Decoding a batch of requests to their ends, round by round, in one mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from engines.errors import BackendError, CapacityError, SsdError
from runtime.device.api import Device
from runtime.kv.slots import SlotPool, SlotRef
from runtime.request import FinishReason, Request
from runtime.round import Rounds, Side
from runtime.workers.draft import DraftWorker
from runtime.workers.target import TargetWorker

OnTokens = Callable[[int, list[int]], None]
"""Called with (row, tokens just committed)."""


@dataclass(frozen=True, slots=True)
class Stats:
    """One generation's counts and times. Rounds and tokens are sums over the batch's rows.

    acceptance_length = emitted tokens / verifications, the bonus token included. A block counts
    as emitted up to where its text ended, an end-of-sequence token included; ``num_discarded``
    counts the rest. ``histogram[k]`` counts verifications that accepted k drafted tokens.
    """

    num_tokens: int
    num_rounds: int
    num_emitted: int
    num_hits: int | None
    histogram: tuple[int, ...]
    prompt_s: float
    decode_s: float
    verify_s: float
    draft_s: float
    num_discarded: int = 0

    @property
    def acceptance_length(self) -> float:
        return self.num_emitted / self.num_rounds if self.num_rounds else 0.0

    @property
    def hit_rate(self) -> float | None:
        """Share of rounds whose outcome had been prepared; None where nothing is prepared."""
        if self.num_hits is None:
            return None
        return self.num_hits / self.num_rounds if self.num_rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens / seconds from the end of the prompt to the last token."""
        return self.num_tokens / self.decode_s if self.decode_s else 0.0


class Decoder:
    """Runs one batch at a time on the given lanes."""

    def __init__(
        self,
        device: Device,
        mode: str,
        target: Side[TargetWorker],
        draft: Side[DraftWorker] | None,
        *,
        max_batch: int,
    ) -> None:
        self._mode = mode
        self._target = target
        self._draft = draft
        self._rounds = Rounds(device, mode, target, draft)
        self._pool = SlotPool(max_batch)

    def run(self, requests: Sequence[Request], on_tokens: OnTokens | None = None) -> Stats:
        """Decode every request to its end. Raises CapacityError beyond max_batch requests.

        On any error, an exception of ``on_tokens`` or ctrl-C included, the streams are drained
        and the slots given back before it is raised, so the next batch starts clean. Only an
        error of an engine lasts: BackendError then refuses every later batch.
        """
        self._require_sound()
        if len(requests) > self._pool.num_free:
            raise CapacityError(
                f"{len(requests)} requests in a batch, this bundle was built for "
                f"{self._pool.num_free}; rebuild with a larger --max-batch"
            )
        slots = [self._pool.lease() for _ in requests]
        try:
            return self._run(requests, slots, on_tokens)
        finally:
            try:
                self._rounds.finish()
            finally:
                for slot in slots:
                    self._pool.release(slot)

    def _require_sound(self) -> None:
        """A stream that failed skips all further work (``runtime.device.api``)."""
        try:
            self._rounds.finish()
        except SsdError as error:
            raise BackendError(
                "an earlier error stopped the engines; close them and open the bundle again "
                f"(the error was: {error})"
            ) from error

    def _run(
        self, requests: Sequence[Request], slots: Sequence[SlotRef], on_tokens: OnTokens | None
    ) -> Stats:
        busy_before, hits_before = self._busy(), self._hits()
        started = perf_counter()
        self._rounds.start(
            [request.prompt for request in requests],
            [request.params for request in requests],
            slots,
        )
        self._target.stream.sync()
        prompt_end = perf_counter()
        open_rows = list(range(len(requests)))
        histogram = [0] * (self._target.worker.mailbox.num_draft + 1)
        num_emitted = 0
        committed: dict[int, list[int]] = {}
        while open_rows:
            self._rounds.launch()
            _hand_on(committed, on_tokens)  # the last round's tokens, while this round runs
            emitted = self._rounds.emitted()
            committed = {row: requests[row].commit(emitted[row]) for row in open_rows}
            for row, taken in committed.items():
                histogram[len(emitted[row]) - 1] += 1
                num_emitted += len(taken) + (requests[row].finish_reason is FinishReason.STOP)
                if requests[row].finish_reason is not None:
                    open_rows.remove(row)
                    self._rounds.retire(row)
        _hand_on(committed, on_tokens)
        decode_end = perf_counter()
        self._rounds.finish()
        busy, hits = self._busy(), self._hits()
        return Stats(
            num_tokens=sum(len(request.generated) for request in requests),
            num_rounds=sum(histogram),
            num_emitted=num_emitted,
            num_hits=hits - hits_before if self._mode == "ssd" else None,
            histogram=tuple(histogram),
            prompt_s=prompt_end - started,
            decode_s=decode_end - prompt_end,
            verify_s=busy[0] - busy_before[0],
            draft_s=busy[1] - busy_before[1],
            num_discarded=sum((k + 1) * n for k, n in enumerate(histogram)) - num_emitted,
        )

    def _busy(self) -> tuple[float, float]:
        """Seconds both sides have worked so far; read while the streams are idle."""
        draft = self._draft
        return self._target.worker.busy_s, draft.worker.busy_s if draft is not None else 0.0

    def _hits(self) -> int:
        draft = self._draft
        return sum(draft.worker.statistics.num_hits.values()) if draft is not None else 0


def _hand_on(committed: Mapping[int, list[int]], on_tokens: OnTokens | None) -> None:
    for row, tokens in committed.items():
        if tokens and on_tokens is not None:
            on_tokens(row, tokens)
