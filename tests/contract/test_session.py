"""What every backend's session must do (``runtime.backends.api``), whatever runs the engine."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError, CapacityError
from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.api import CallShape, Session
from runtime.backends.faulty import FaultySession
from runtime.backends.toy import ToySession
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout, branch_mask
from runtime.workers.calls import feed_one, fill_trunk
from runtime.workers.prefill import prefill
from runtime.workers.probe import (
    WITH_PLACE,
    WITH_ROWS,
    WITH_TEXTS,
    Invariance,
    measure_invariance,
    probe_invariance,
)
from tests.helpers.prescribed import prescribed
from tests.helpers.tiny_bundle import open_session, tiny_bundle
from tests.helpers.toy_pair import tables

WIDTH = 5


@pytest.fixture(params=["toy", "faulty", "prescribed", "onnxruntime-fp32", "onnxruntime-int8"])
def make(request):
    """Sessions by role; closed with the device at the end."""
    device = HostDevice()

    def session(role: str) -> Session:
        if request.param in ("toy", "faulty"):
            target, draft, ids = tables(1, draft_vocab=7)
            limits = Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6)
            table = target if role == TARGET else draft
            toy = ToySession(role, table, limits, device, vocab_map=None if role == TARGET else ids)
            return toy if request.param == "toy" else FaultySession(toy, fail_at=10**9)
        if request.param == "prescribed":
            return prescribed(role, device)
        precision = request.param.removeprefix("onnxruntime-")
        return open_session(tiny_bundle(precision=precision), device, role)

    yield session
    device.close()


def layout_of(session: Session) -> SlotLayout:
    limits = session.manifest.limits
    return SlotLayout(
        session.manifest.kv, limits.max_branches if session.manifest.role == DRAFT else 0
    )


def text(session: Session, length: int, seed: int = 0) -> list[int]:
    vocab = session.manifest.model.vocab_size
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


def logits_after(session: Session, tokens: list[int], slot: int = 0) -> np.ndarray:
    """Logits of the last WIDTH tokens of a text, fed in one call after its prompt."""
    layout = layout_of(session)
    prefill(session, layout, slot, tokens[:-WIDTH])
    return feed_one(session, layout, slot, len(tokens) - WIDTH, tokens[-WIDTH:]).logits[0].copy()


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_rows_are_equal_however_many_tokens_a_call_has(make, role):
    session = make(role)
    tokens = text(session, 40)
    together = logits_after(session, tokens)
    layout = layout_of(session)
    for width in (1, 2, 3):
        for start in range(WIDTH - width + 1):
            at = len(tokens) - WIDTH + start
            step = feed_one(session, layout, 0, at, tokens[at : at + width])
            np.testing.assert_array_equal(step.logits[0], together[start : start + width])


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_growing_the_bound_rows_keeps_the_text_and_the_rounding(make, role):
    session = make(role)
    tokens = text(session, 30)
    before = logits_after(session, tokens)
    session.bind_rows(session.manifest.kv.rows)
    after = feed_one(session, layout_of(session), 0, len(tokens) - WIDTH, tokens[-WIDTH:])
    np.testing.assert_array_equal(after.logits[0], before)


def test_slots_do_not_see_each_other(make):
    session = make(TARGET)
    tokens = text(session, 40)
    expected = logits_after(session, tokens, slot=1)
    for slot, seed in ((0, 1), (2, 2)):
        prefill(session, layout_of(session), slot, text(session, 50, seed))
    again = feed_one(session, layout_of(session), 1, len(tokens) - WIDTH, tokens[-WIDTH:])
    np.testing.assert_array_equal(again.logits[0], expected)


def test_a_batch_of_slots_gives_each_row_what_it_gets_alone(make):
    session = make(TARGET)
    layout = layout_of(session)
    texts = [text(session, length, seed) for seed, length in enumerate((9, 40, 23))]
    alone = [logits_after(session, tokens, slot) for slot, tokens in enumerate(texts)]
    session.bind_rows(layout.rows_for(64))
    step = session.prepare(CallShape(0, 3, WIDTH, WIDTH))
    for slot, tokens in enumerate(texts):
        fill_trunk(step, slot, layout, len(tokens) - WIDTH, tokens[-WIDTH:])
        step.logit_rows[slot] = range(WIDTH)
        step.num_draft[slot] = slot
    step.run()
    for slot in range(3):
        np.testing.assert_array_equal(step.logits[slot], alone[slot])
        best = alone[slot].argmax(axis=-1)
        drafts = texts[slot][-WIDTH + 1 :]
        accepted = 0
        while accepted < slot and best[accepted] == drafts[accepted]:
            accepted += 1
        assert (step.accepted[slot], step.next[slot]) == (accepted, best[accepted])


def test_a_branch_moved_to_the_trunk_continues_as_if_it_had_been_fed_there(make):
    session = make(DRAFT)
    layout = layout_of(session)
    tokens, paths = text(session, 20), np.array([text(session, 4, seed) for seed in range(6)])
    prefill(session, layout, 0, tokens)
    for depth in range(4):
        session.bind_rows(layout.rows_for(40))
        step = session.prepare(CallShape(0, 1, 6, 6, copy=depth))
        step.tokens[0] = paths[:, depth]
        step.positions[0] = len(tokens) + depth
        step.write_at[0] = layout.scratch_row(depth)
        branch_mask(step.mask[0], layout, np.full(6, len(tokens)), depth)
        step.logit_rows[0] = range(6)
        step.num_draft[0] = 0
        step.run()
    last = step.logits[0, 2].copy()
    session.copy_rows(0, layout.branch_rows(2, 4), layout.trunk_row(len(tokens)))
    ending = [*tokens, *paths[2].tolist(), 7]
    moved = feed_one(session, layout, 0, len(ending) - 1, [7]).logits[0].copy()
    fed = logits_after(session, ending)
    # Scratch and trunk rows stand in another order, so floats may round otherwise (not a toy's).
    np.testing.assert_allclose(moved[0], fed[-1], atol=2e-3)
    np.testing.assert_allclose(last, fed[-2], atol=2e-3)


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_a_text_moved_to_another_slot_goes_on_with_the_same_bits(make, role):
    session = make(role)
    layout, tokens = layout_of(session), text(session, 40)
    expected = logits_after(session, tokens, slot=2)
    prefill(session, layout, 0, text(session, 60, 1))  # what the slot held before
    session.copy_slot(2, 0, layout.trunk_rows(len(tokens) - WIDTH))
    moved = feed_one(session, layout, 0, len(tokens) - WIDTH, tokens[-WIDTH:])
    np.testing.assert_array_equal(moved.logits[0], expected)


def test_branches_of_many_slots_in_one_call_are_those_of_each_alone(make):
    """The draft's branch steps serve the whole batch at once."""
    session = make(DRAFT)
    layout = layout_of(session)
    texts = [text(session, length, seed) for seed, length in enumerate((9, 40, 23))]
    for slot, tokens in enumerate(texts):
        prefill(session, layout, slot, tokens)
    session.bind_rows(layout.rows_for(64))
    fed = np.array([text(session, 6, seed) for seed in range(3)])
    lengths = np.array([[len(tokens)] * 6 for tokens in texts])

    def branches(first: int, count: int) -> np.ndarray:
        step = session.prepare(CallShape(first, count, 6, 6))
        rows = slice(first, first + count)
        step.tokens[:], step.positions[:] = fed[rows], lengths[rows]
        step.write_at[:] = layout.scratch_row(0)
        branch_mask(step.mask, layout, lengths[rows], 0)
        step.logit_rows[:] = np.arange(6)
        step.num_draft[:] = 0
        step.run()
        return step.logits.copy()

    alone = np.concatenate([branches(slot, 1) for slot in range(3)])
    np.testing.assert_allclose(branches(0, 3), alone, atol=1e-4)


def test_outputs_of_one_copy_survive_calls_of_the_others(make):
    """The winner's logits are wanted after all branch steps, and after a prompt's chunk."""
    session = make(DRAFT)
    layout = layout_of(session)
    prefill(session, layout, 0, text(session, 20))

    def run(copy: int, width: int) -> np.ndarray:
        session.bind_rows(layout.rows_for(40))
        step = session.prepare(CallShape(0, 1, width, width, copy=copy))
        fill_trunk(step, 0, layout, 20, text(session, width, seed=copy))
        step.logit_rows[0] = np.arange(width)
        step.num_draft[0] = 0
        step.run()
        return step.logits

    kept = [run(copy, 3) for copy in (1, 2)]
    before = [logits.copy() for logits in kept]
    run(0, 3)
    run(0, 5)
    session.bind_rows(session.manifest.kv.rows)
    run(0, 4)
    for logits, expected in zip(kept, before, strict=True):
        np.testing.assert_array_equal(logits, expected)


def test_reduced_drafts_sample_in_target_ids(make):
    session = make(DRAFT)
    assert session.vocab_map is not None
    step = feed_one(session, layout_of(session), 0, 0, text(session, WIDTH))
    np.testing.assert_array_equal(step.sample[0], session.vocab_map[step.logits[0].argmax(-1)])


def test_rows_beyond_the_built_ones_are_refused_with_figures(make):
    session = make(TARGET)
    rows = session.manifest.kv.rows
    with pytest.raises(CapacityError, match=f"{rows + 1} cache rows needed.*{rows}.*--max-len"):
        session.bind_rows(rows + 1)


def test_a_call_that_fails_raises_and_leaves_no_poison(make):
    session = make(TARGET)
    tokens = text(session, 30)
    expected = logits_after(session, tokens)
    step = session.prepare(CallShape(0, 1, WIDTH, WIDTH))
    step.tokens[0] = 0
    step.positions[0] = range(WIDTH)
    step.mask[0] = True
    step.logit_rows[0] = range(WIDTH)
    step.write_at[0] = step.mask.shape[-1] - 1  # reaches past the last bound row
    with pytest.raises(BackendError):
        step.run()
    np.testing.assert_array_equal(logits_after(session, tokens), expected)


def test_the_load_time_probe_accepts_the_engines_we_build(make):
    assert probe_invariance(make(TARGET), WIDTH, 3).min_tokens == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("neighbours", "depend on each other"),
        ("width", "a call of 5 tokens and one"),
        ("middle width", "a call of 5 tokens and one with 3 tokens"),
        ("batch", r"one with 2 texts \(--max-batch\)"),
        ("last place", r"one with 2 texts \(--max-batch\)"),
        ("full batch", r"one with 3 texts \(--max-batch\)"),
    ],
)
def test_the_probe_refuses_an_engine_whose_rows_are_not_independent(make, fault, message):
    session = make(TARGET)
    faulty = _Faulty(session, fault)
    with pytest.raises(BackendError, match=message):
        probe_invariance(faulty, WIDTH, 3)


def test_the_probe_notices_an_engine_that_rounds_single_tokens_differently(make):
    assert probe_invariance(_Faulty(make(TARGET), "single"), WIDTH).min_tokens == 2


@pytest.mark.parametrize(
    ("fault", "least", "varies_with"),
    [
        ("none", 1, ()),
        ("single", 2, ()),
        ("width", WIDTH, ()),
        ("middle width", WIDTH, ()),
        ("batch", 1, (WITH_TEXTS,)),
        ("last place", 1, (WITH_TEXTS,)),
        ("full batch", 1, (WITH_TEXTS,)),
        ("rows", 1, (WITH_ROWS,)),
        ("place", 1, (WITH_PLACE,)),
    ],
)
def test_how_far_an_engine_is_exact_is_found_out(make, fault, least, varies_with):
    """On a GPU kernels are chosen by shape; what padding can mend is padded, the rest is told."""
    found = measure_invariance(_Faulty(make(TARGET), fault), WIDTH, 3)
    assert found == Invariance(least, varies_with)
    assert (found.note is None) == (not varies_with)
    assert all(what in (found.note or "") for what in varies_with)


def test_rows_that_depend_on_their_neighbours_are_refused_there_too(make):
    with pytest.raises(BackendError, match="depend on each other"):
        measure_invariance(_Faulty(make(TARGET), "neighbours"), WIDTH, 3)


class _Faulty:
    """A session whose logits are off by a little where the named fault says so."""

    def __init__(self, session: Session, fault: str) -> None:
        self._session = session
        self._fault = fault

    def __getattr__(self, name):
        return getattr(self._session, name)

    def prepare(self, shape):
        return _FaultyStep(self._session.prepare(shape), self._fault)


class _FaultyStep:
    def __init__(self, step, fault: str) -> None:
        self.__dict__["_step"] = step
        self.__dict__["_fault"] = fault

    def __getattr__(self, name):
        return getattr(self._step, name)

    def run(self):
        self._step.run()
        width, num_slots = self._step.shape.num_tokens, self._step.shape.num_slots
        off = {
            "neighbours": float(self._step.tokens.sum()),
            "width": float(width == 2),
            "middle width": float(width == 3),
            "batch": float(num_slots > 1),
            "full batch": float(num_slots == 3),
            "last place": np.arange(num_slots)[:, None, None] * float(num_slots > 1),
            "single": float(width == 1),
            "rows": float(self._step.mask.shape[-1] > 128),
            "place": np.arange(self._step.logits.shape[1])[None, :, None],
            "none": 0.0,
        }[self._fault]
        # Beside the step's own: a session may leave what it does not change for its next call.
        self.__dict__["logits"] = self._step.logits + np.float32(1e-3) * np.asarray(off, np.float32)
