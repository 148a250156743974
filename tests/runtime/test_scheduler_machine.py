"""The scheduler as a state machine: texts come, go and are cancelled between any two steps.

Whatever happens around it, a finished text is what plain decoding of it alone gives, and what its
caller was handed is a prefix of that at any time. The toy engines refuse wrong masks, rows and
positions, and the device refuses accesses that nothing orders.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.device.seeded import SeededDevice, eager, lazy
from runtime.request import FinishReason, Request
from runtime.sampling.params import SamplingParams
from runtime.spec.fallback import Fallback
from runtime.spec.plan import RoundPlan
from runtime.ticket import RoundReport, Ticket, TicketState
from runtime.workers.draft_row import RowState
from runtime.workers.mailbox import Kind
from tests.helpers.policies import Scripted
from tests.helpers.toy_pair import VOCAB, ToyPair, plain

MAX_LEN = 90
DEVICES = st.one_of(
    st.just(lambda: SeededDevice(lazy)),
    st.just(lambda: SeededDevice(eager)),
    st.just(lambda: HostDevice(check=True)),
    st.integers(0, 2**32).map(lambda seed: lambda: SeededDevice(random.Random(seed))),
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 0, 3]),
    seed=st.integers(0, 2**64 - 1),
)

PLANS = st.builds(
    RoundPlan,
    mode=st.sampled_from(["ar", "sd", "ssd", "ssd"]),
    num_draft=st.integers(1, 9),
    num_branches=st.integers(1, 9),
    fallback=st.sampled_from(Fallback),
)

SALTS = st.sampled_from([None, None, None, "tenant"])

REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.builds(
            lambda tokens, times: tokens * times,
            st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
            st.sampled_from([1, 2, 14, 17]),
        ),
        "params": PARAMS,
        "max_tokens": st.integers(1, 60),
        "stop_ids": st.sampled_from([(), (), (3,), (3, 5)]).map(frozenset),
        "min_tokens": st.sampled_from([0, 0, 4]),
        "num_logprobs": st.sampled_from([None, None, 2]),
        "cache_salt": SALTS,
    }
)


def cells_of(tokens: list[int]) -> np.ndarray:
    """What a toy engine's rows of a text hold."""
    return np.array([[token, place] for place, token in enumerate(tokens)]).reshape(-1, 2)


def rows_of(session: ToySession, index: int, num: int) -> np.ndarray:
    """The first rows of a slot, also where they are laid aside."""
    caches = session._caches
    bound = caches.view(0)[index, 0, :num]
    aside = caches._aside(0).reshape(-1, caches._num_slots, bound.shape[-1])
    return np.concatenate([bound, aside[: num - len(bound), index]])


def text_of(request: Request) -> list[int]:
    return [*request.prompt, *request.generated]


class Texts(RuleBasedStateMachine):
    """``alone`` is the model: each submitted request decoded by itself."""

    tickets = Bundle("tickets")

    @initialize(
        device=DEVICES,
        mode=st.sampled_from(["ar", "sd", "ssd", "ssd", "ssd"]),
        fallback=st.sampled_from(Fallback),
        num_draft=st.integers(1, 5),
        num_branches=st.integers(1, 9),
        max_batch=st.sampled_from([1, 2, 3, 4, 4]),
        agreement=st.sampled_from([0.3, 2.0, 1e6]),
        draft_vocab=st.sampled_from([None, 7]),
        plans=st.none() | st.lists(PLANS, min_size=1, max_size=8),
        prefix_reuse=st.sampled_from([True, True, False]),
    )
    def open(self, device, plans, **options) -> None:
        self.device = device()
        self.max_batch, self.mode = options["max_batch"], options["mode"]
        if plans is not None and self.mode != "ar":
            most = options["num_draft"], options["num_branches"]
            self.mode, options["policy"] = "mixed", Scripted(plans, *most)
        self.pair = ToyPair(self.device, max_len=MAX_LEN, on_round=self.round, **options)
        self.scheduler = self.pair.scheduler
        self.handed: dict[Ticket, list[int]] = {}
        self.alone: dict[Ticket, Request] = {}
        self.cancelled: set[Ticket] = set()
        self.reuses = options["prefix_reuse"]

    def round(self, report: RoundReport) -> None:
        """Drafts left in a slot by its last text are not its next one's: it begins without any,
        but where they are drafted between verifications."""
        for row in report.rows:
            is_first = row.hit is None and self.mode in ("ar", "ssd")
            assert not is_first or row.num_drafted == 0

    @rule(target=tickets, requests=st.lists(REQUESTS, min_size=1, max_size=4))
    def submit(self, requests):
        submitted = []
        for options in requests:
            request, twin = (Request(max_len=MAX_LEN, **options) for _ in range(2))
            handed: list[int] = []
            ticket = self.scheduler.submit(request, handed.extend)
            self.handed[ticket] = handed
            self.alone[ticket] = plain(self.pair.target_session.table, twin)
            submitted.append(ticket)
        return multiple(*submitted)

    @rule(target=tickets, ticket=tickets, data=st.data(), options=REQUESTS)
    def go_on(self, ticket: Ticket, data, options):
        """The next turn of a conversation, another answer to the same, or another end of it."""
        text = text_of(ticket.request)
        kept = data.draw(st.sampled_from([len(text), len(text), len(text) - 1, len(text) // 2]))
        prompt = [*text[:kept], *options["prompt"]][: MAX_LEN - 1]
        salt = data.draw(st.sampled_from([ticket.request.cache_salt, options["cache_salt"]]))
        return self.submit([options | {"prompt": prompt, "cache_salt": salt}])

    @rule(ticket=tickets)
    def cancel(self, ticket: Ticket) -> None:
        self.scheduler.cancel(ticket)
        if not ticket.done:
            self.cancelled.add(ticket)

    @rule(times=st.integers(1, 6))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.scheduler.step()

    def finish(self) -> None:
        for _ in range(3000):
            if not self.scheduler.step():
                break
        else:
            raise AssertionError("the scheduler never comes to an end")
        assert all(ticket.done for ticket in self.handed)
        assert self.scheduler.num_free == self.max_batch
        assert not self.scheduler._prompts

    @precondition(lambda self: self.handed)
    @rule()
    def both_sides_know_the_same_lengths(self) -> None:
        """G8, G10: after any round the caches continue the text where it ends."""
        self.scheduler._drain()
        self.scheduler._rounds.finish()
        for ticket in self.handed:
            if ticket.slot is None:
                continue
            request, index = ticket.request, ticket.slot.index
            assert self.pair.target.slots[index] == ticket.slot
            fed = int(self.pair.target.lengths[index]) - 1
            cells = self.pair.target_session._caches.view(0)[index, 0, :fed]
            np.testing.assert_array_equal(cells[:, 0], text_of(request)[:fed])
            np.testing.assert_array_equal(cells[:, 1], np.arange(fed))
            if ticket.state is TicketState.RUNNING:
                assert fed + 1 == len(text_of(request))
            if hasattr(self.pair, "draft"):
                self.check_draft(ticket)
        if hasattr(self.pair, "draft"):
            assert not self.pair.draft.cache._entries, "guesses outlived their round"
        self.check_what_free_slots_keep()

    def check_what_free_slots_keep(self) -> None:
        """What the pool promises the next text is what the rows hold, on both sides."""
        pool = self.scheduler._seats.pool
        for index in pool._free:
            kept = pool.kept(index)
            if kept is None:
                continue
            assert self.reuses
            num = len(kept.tokens)
            assert num < self.pair.target.lengths[index] <= MAX_LEN - 1
            rows = rows_of(self.pair.target_session, index, num)
            np.testing.assert_array_equal(rows, cells_of(kept.tokens.tolist()))
            if hasattr(self.pair, "draft"):
                calls = self.pair.draft._calls
                assert calls.kept[index] <= MAX_LEN - 2
                both = min(num, calls.kept[index])
                held = calls.layout.rows_for(both)
                rows = rows_of(self.pair.draft_session, index, held)[calls.layout.rows_for(0) :]
                known = calls.known(kept.tokens[:both].tolist())
                np.testing.assert_array_equal(rows, cells_of(known))

    def check_draft(self, ticket: Ticket) -> None:
        assert ticket.slot is not None
        row = self.pair.draft.rows[ticket.slot.index]
        assert row is not None
        assert row.slot == ticket.slot
        if row.state is RowState.OVER:
            return
        text = text_of(ticket.request)
        if self.mode == "mixed":
            # It may rest: what it knows is the text's beginning.
            assert row.tokens[: len(text)] == text[: len(row.tokens)]
            text = row.tokens
        layout = self.pair.draft._calls.layout
        cells = self.pair.draft_session._caches.view(0)[ticket.slot.index, 0]
        held = cells[layout.trunk_rows(row.trunk)]
        known = self.pair.draft._calls.known([*text, *row.proposal][: row.trunk])
        np.testing.assert_array_equal(held[:, 0], known)
        np.testing.assert_array_equal(held[:, 1], np.arange(row.trunk))
        if ticket.state is not TicketState.RUNNING or self.mode == "mixed":
            return
        assert row.tokens == text
        # The table of runtime.workers.draft_row.
        length, drafted = len(text), len(row.proposal)
        if self.mode == "sd":
            assert row.trunk in (length - 1, length - 2)
        else:
            # ``commit`` may still be put off.
            is_fed = row.kind in (Kind.HIT, Kind.JIT) and drafted and row.winner is None
            assert row.trunk == length - 1 + (drafted if is_fed else 0)
        assert row.proposal == () or len(row.proposal) <= row.room
        if row.state is RowState.RUNNING and self.mode == "ssd":
            sent = self.pair.mailbox.proposal(ticket.slot.index, ticket.slot.generation)
            assert sent.tokens == row.proposal

    @invariant()
    def texts_are_plain_decodings(self) -> None:
        if not hasattr(self, "pair"):
            return
        for ticket, handed in self.handed.items():
            request, alone = ticket.request, self.alone[ticket]
            assert handed == alone.generated[: len(handed)]
            if not ticket.done:
                continue
            assert handed == request.generated
            assert ticket.stats.num_tokens == len(handed)
            if request.finish_reason is FinishReason.CANCELLED:
                assert ticket in self.cancelled
                continue
            assert handed == alone.generated
            assert request.finish_reason is alone.finish_reason
            assert [entry.logprob for entry in request.logprobs] == [
                entry.logprob for entry in alone.logprobs
            ]

    @invariant()
    def every_slot_is_free_or_held_by_one_text(self) -> None:
        if not hasattr(self, "pair"):
            return
        held = [ticket.slot for ticket in self.handed if ticket.slot is not None]
        assert len({slot.index for slot in held}) == len(held)
        assert self.scheduler.num_free == self.max_batch - len(held)

    def teardown(self) -> None:
        """Every text comes to its end, and every slot back."""
        if hasattr(self, "pair"):
            self.finish()
            self.texts_are_plain_decodings()
            self.device.close()


TestTexts = Texts.TestCase
TestTexts.settings = settings(stateful_step_count=25)


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_what_free_slots_keep_survives_dummies_compaction_and_the_next_texts(mode) -> None:
    """Looked at behind each step: an off-by-one of what is kept, a dummy or a move that overwrites
    it would show long after, in a text that happens to begin alike."""
    texts = Texts()
    texts.open(
        device=lambda: SeededDevice(lazy),
        plans=None,
        mode=mode,
        fallback=Fallback.ZERO,
        num_draft=3,
        num_branches=4,
        max_batch=3,
        agreement=2.0,
        draft_vocab=None,
        prefix_reuse=True,
    )
    common = {
        "params": SamplingParams(),
        "stop_ids": frozenset(),
        "min_tokens": 0,
        "num_logprobs": None,
        "cache_salt": None,
    }
    lengths = [([0, 1] * 10, 9), ([5] * 30, 40), ([0, 1] * 10 + [4], 20), ([0, 1] * 12, 30)]
    for prompt, max_tokens in lengths * 2:
        texts.submit(requests=[common | {"prompt": prompt, "max_tokens": max_tokens}])
        for _ in range(7):
            texts.step(times=1)
            texts.both_sides_know_the_same_lengths()
            texts.texts_are_plain_decodings()
    while texts.scheduler.step():
        texts.both_sides_know_the_same_lengths()
    assert sum(ticket.stats.num_cached > 0 for ticket in texts.handed) >= 4
    texts.teardown()
