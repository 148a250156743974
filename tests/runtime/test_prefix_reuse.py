"""Texts that begin as earlier ones did: fewer tokens are fed, and nothing else shows it."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import CapacityError, UsageError
from runtime.backends.onnxruntime import OrtSession
from runtime.device.host import HostDevice
from runtime.kv.kept import BLOCK
from runtime.kv.layout import SlotLayout
from runtime.kv.slots import SlotRef
from runtime.llm import LLM
from runtime.loader import LoadedPair
from runtime.loading import host as loading
from runtime.memo import Memo
from runtime.placement import Placement
from runtime.request import FinishReason, Request, read_options
from runtime.sampling.params import SamplingParams
from runtime.scheduler import Scheduler
from runtime.spec.drafter import Drafter
from runtime.spec.fallback import Fallback
from runtime.spec.plan import PLAIN, RoundPlan
from runtime.ticket import Ticket
from runtime.workers import row_probe
from runtime.workers.calls import feed_one
from runtime.workers.entry import Entry
from runtime.workers.row_probe import rows_are_alike
from tests.helpers.policies import Scripted
from tests.helpers.tiny_bundle import open_session, tiny_bundle
from tests.helpers.toy_pair import ToyPair, plain

MAX_LEN = 250
LAWS = [SamplingParams(), SamplingParams(temperature=0.8, seed=5, top_k=40)]
# How to decode: options of a pair, and whether a script of modes plans its rounds.
WAYS = {
    "ar": {},
    "sd": {},
    "ssd": {},
    "ssd jit": {"fallback": Fallback.JIT},
    "ssd lookup": {"fallback": Fallback.LOOKUP},
    "ssd both": {"drafter": Drafter.BOTH},
    "sd lookup": {"drafter": Drafter.LOOKUP},
    "ssd in turns": {},
}


def tiny():
    return tiny_bundle(max_len=MAX_LEN, max_batch=2, num_draft=3, max_branches=6)


@pytest.fixture
def load():
    """Tiny pairs on checked devices, closed at the end."""
    pairs = []

    def open_pair(way: str, bundle=None, **options) -> LoadedPair:
        mode, _, rest = way.partition(" ")
        policy = None
        if rest == "in turns":
            plans = [PLAIN] * 7 + [RoundPlan("sd", 3)] * 3 + [RoundPlan("ssd", 3, 6)] * 4
            policy = Scripted(plans, 3, 6)
        pairs.append(
            LoadedPair(
                bundle or tiny(),
                Placement(mode, (0,), (0,)),
                verify="coupled",
                num_draft=3,
                num_branches=6,
                device=HostDevice(check=True),
                policy=policy,
                **{**WAYS.get(way, {}), **options},
            )
        )
        return pairs[-1]

    yield open_pair
    for pair in pairs:
        pair.close()


def conversation(scheduler: Scheduler, law: SamplingParams) -> list[Ticket]:
    """Two users with a common system prompt, three turns each; each turn goes on behind the last
    answer. One answer is cut by a stop token, one is cancelled in the middle."""
    draw = np.random.default_rng(3).integers
    system = draw(0, 320, 37).tolist()
    texts = [[*system, *draw(0, 320, 9 + user).tolist()] for user in range(2)]
    done: list[Ticket] = []
    for turn in range(3):
        tickets = []
        for user, text in enumerate(texts):
            request = Request(
                text,
                law,
                max_tokens=20 + 7 * turn + user,
                stop_ids=frozenset(range(0, 320, 40)) if (turn, user) == (1, 0) else frozenset(),
                max_len=MAX_LEN,
                num_logprobs=2,
                min_tokens=3,
            )
            tickets.append(scheduler.submit(request))
            scheduler.step()
        while scheduler.step():
            if (turn, len(tickets[1].request.generated) > 8) == (1, True):
                scheduler.cancel(tickets[1])
        done += tickets
        for user, ticket in enumerate(tickets):
            # How far one came that was cancelled depends on when: that turn's answer is left out.
            answer = [] if (turn, user) == (1, 1) else ticket.request.generated
            texts[user] = [*texts[user], *answer, *draw(0, 320, 11).tolist()]
    return done


def seen_by_callers(ticket: Ticket) -> tuple[object, ...]:
    request = ticket.request
    return request.generated, request.finish_reason, request.logprobs


@pytest.mark.parametrize("law", LAWS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_is_the_same_with_and_without_reuse(load, way, law) -> None:
    """Tokens, ends and log-probabilities bit by bit, with every way of drafting; and from the
    second turn on most of a prompt is not fed."""
    fresh = conversation(load("ar", prefix_reuse=False).scheduler, law)
    assert not any(ticket.stats.num_cached for ticket in fresh)
    reused = conversation(load(way).scheduler, law)
    for number, (one, other) in enumerate(zip(fresh, reused, strict=True)):
        assert list(one.request.prompt) == list(other.request.prompt)
        if number == 3:  # cancelled
            assert other.request.finish_reason is FinishReason.CANCELLED
            shared = min(len(each.request.generated) for each in (one, other))
            assert one.request.generated[:shared] == other.request.generated[:shared]
            continue
        assert seen_by_callers(one) == seen_by_callers(other)
    for number, ticket in enumerate(reused):
        num = len(ticket.request.prompt)
        if number == 1:
            assert ticket.stats.num_cached == 32, "the common system prompt, of a text that runs"
        if number > 1:
            before = reused[number - 2].request
            known = len(before.prompt) + (0 if number == 5 else len(before.generated))
            assert ticket.stats.num_cached >= known - BLOCK, "a block of its own text is fed again"
            assert ticket.stats.num_cached % BLOCK == 0
            assert ticket.stats.num_cached < num


def test_as_much_is_found_again_with_speculation_as_without(load) -> None:
    """K7: elsewhere prefix hits collapsed as soon as a draft was there."""
    found = {
        way: [ticket.stats.num_cached for ticket in conversation(load(way).scheduler, LAWS[0])]
        for way in ("ar", "sd", "ssd")
    }
    for way in ("sd", "ssd"):
        for one, other in zip(found["ar"][:3], found[way][:3], strict=True):
            assert abs(one - other) <= BLOCK


def test_the_draft_feeds_no_more_of_a_known_prompt_than_the_target(load) -> None:
    """A draft that forgot what it was fed would read the whole conversation again each turn."""
    pair = load("ssd")
    prompt = [(7 * i) % 320 for i in range(150)]
    first = Request(prompt, LAWS[0], 20, frozenset(), MAX_LEN)
    pair.scheduler.run([first])
    fed: list[int] = []
    feed = pair.draft._feed

    def note(row, start, chunk):
        fed.append(len(chunk))
        feed(row, start, chunk)

    pair.draft._feed = note
    stats = pair.scheduler.run(
        [Request([*prompt, *first.generated, 1, 2], LAWS[0], 4, frozenset(), MAX_LEN)]
    )
    assert stats.num_cached == 160
    assert sum(fed) <= 2 * BLOCK


@pytest.mark.parametrize("way", ["ar", "ssd"])
def test_one_prompt_asked_for_several_times_at_once_is_fed_once(load, way) -> None:
    """n answers to one prompt (``LLM.choices``) all begin in the same step."""
    prompt = [(7 * i) % 320 for i in range(150)]
    laws = [SamplingParams(temperature=1.0, seed=seed) for seed in range(4)]
    alone = load("ar", prefix_reuse=False, max_batch=1)
    expected = [Request(prompt, law, 12, frozenset(), MAX_LEN) for law in laws]
    alone.scheduler.run(expected)
    found = [Request(prompt, law, 12, frozenset(), MAX_LEN) for law in laws]
    stats = load(way).scheduler.run(found)
    assert [each.generated for each in found] == [each.generated for each in expected]
    assert stats.num_cached == 3 * 144


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_rows_behind_a_stop_inside_a_block_are_not_used(mode) -> None:
    """The block that held the stop token goes on behind it; the caller's next turn does not."""
    device = HostDevice(check=True)
    pair = ToyPair(device, mode, agreement=1e6, max_len=160, num_draft=6)
    prompt = [1, 2, 3] * 10
    plain_text = plain(
        pair.target_session.table, Request(prompt, LAWS[0], 40, frozenset(), 160)
    ).generated
    stop = plain_text[9]
    first = Request(prompt, LAWS[0], 40, frozenset([stop]), 160)
    pair.scheduler.run([first])
    assert first.finish_reason is FinishReason.STOP
    turn = [*prompt, *first.generated, *[(stop + 1) % 12] * 9, 4, 5]
    second, twin = (Request(turn, LAWS[0], 30, frozenset(), 160) for _ in range(2))
    stats = pair.scheduler.run([second])
    assert second.generated == plain(pair.target_session.table, twin).generated
    assert stats.num_cached == (len(prompt) + len(first.generated)) // BLOCK * BLOCK
    device.close()


def test_an_interrupted_step_leaves_nothing_to_reuse() -> None:
    """What a step was at when it was interrupted is not known, so nothing is relied on."""
    device = HostDevice(check=True)
    pair = ToyPair(device, "ssd", max_len=160)
    prompt = [1, 2, 3, 4] * 20

    def interrupt(_row: int, _tokens: list[int]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.generate([prompt], [LAWS[0]], on_tokens=interrupt)
    _, stats = pair.generate([prompt], [LAWS[0]])
    assert stats.num_cached == 0
    assert pair.generate([prompt], [LAWS[0]])[1].num_cached == 64
    device.close()


def test_another_salt_finds_nothing_and_the_same_one_does(load) -> None:
    pair = load("ar")
    prompt = [(3 * i) % 320 for i in range(80)]
    found = []
    for salt in (None, "a", None, "a"):
        request = Request(prompt, LAWS[0], 5, frozenset(), MAX_LEN, cache_salt=salt)
        found.append(pair.scheduler.run([request]).num_cached)
    assert found == [0, 0, 64, 64]


def test_a_salt_is_a_string() -> None:
    assert read_options(vocab_size=None, cache_salt="a").cache_salt == "a"
    for wrong in ("", 3):
        with pytest.raises(UsageError, match=r"cache-salt is .* expected a string"):
            read_options(vocab_size=None, cache_salt=wrong)


def test_a_long_conversation_that_waits_does_not_make_a_short_text_pay_for_its_rows(load) -> None:
    """Attention pays for each bound row; those of a text that rests are laid aside meanwhile, and
    are there when it goes on."""
    pair = load("ssd")
    long = [(5 * i) % 320 for i in range(200)]
    pair.scheduler.run([Request(long, LAWS[0], 20, frozenset(), MAX_LEN)])
    most = pair.target_session.num_rows
    pair.scheduler.run([Request([1, 2, 3], LAWS[0], 5, frozenset(), MAX_LEN)])
    assert pair.target_session.num_rows == pair.target_session.manifest.lengths[0] < most
    again, twin = (Request([*long, 9, 9], LAWS[1], 20, frozenset(), MAX_LEN) for _ in range(2))
    assert pair.scheduler.run([again]).num_cached == 192
    load("ar", prefix_reuse=False).scheduler.run([twin])
    assert again.generated == twin.generated


def rows_after(session: OrtSession, tokens: list[int], widths: list[int], step: int) -> np.ndarray:
    """All cache rows of a text in slot 0 that was fed in calls of these widths in turn."""
    limits = session.manifest.limits
    is_draft = session.manifest.role == "draft"
    layout = SlotLayout(session.manifest.kv, limits.max_branches if is_draft else 0)
    session.reset_rows()
    start = number = 0
    while start < len(tokens):
        part = tokens[start : start + widths[number % len(widths)]]
        padded = -(-len(part) // step) * step
        feed_one(session, layout, 0, start, part, width=padded, num_logits=1)
        start, number = start + len(part), number + 1
    session.bind_rows(layout.rows_for(len(tokens)))
    rows = layout.trunk_rows(len(tokens))
    num_parts = 2 * session.manifest.kv.num_layers
    return np.stack([session.cache(part)[0, :, rows] for part in range(num_parts)])


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_rows_are_equal_bit_by_bit_whatever_call_has_written_them(precision, role) -> None:
    """The claim that reuse rests on: prompts in chunks that begin anywhere, and rounds."""
    device = HostDevice()
    session = open_session(tiny_bundle(precision=precision), device, role)
    tokens = np.random.default_rng(1).integers(0, 320, 131).tolist()
    expected = rows_after(session, tokens, [64], 16)
    for widths, step in (([16], 16), ([48, 16, 64], 16), ([7, 3], 16), ([1, 5, 2, 3, 4], 1)):
        np.testing.assert_array_equal(rows_after(session, tokens, widths, step), expected)
    device.close()


def test_an_engine_whose_rows_depend_on_the_call_is_found_out(monkeypatch) -> None:
    """One that rounds a short call's rows a little otherwise: reuse would change its answers."""
    device = HostDevice()
    session = open_session(tiny_bundle(), device)
    assert rows_are_alike(session, 4)

    def spoiling(session, layout, slot, start, tokens, **options):
        step = feed_one(session, layout, slot, start, tokens, **options)
        if step.shape.num_tokens == 3:
            session.cache(1)[slot, :, layout.trunk_row(start)] *= 1 + 1e-5
        return step

    monkeypatch.setattr(row_probe, "feed_one", spoiling)
    assert not rows_are_alike(session, 4)
    device.close()


def test_where_rows_depend_on_the_call_nothing_is_reused_and_it_is_said(
    load, monkeypatch, tmp_path
) -> None:
    asked = []
    monkeypatch.setattr(
        loading, "remembered_rows", lambda *_args, **named: asked.append(named) and False
    )
    pair = load("ar", memo=Memo(tmp_path))
    assert len(asked) == 1
    assert "computed anew" in (pair.note or "")
    prompt = [(3 * i) % 320 for i in range(80)]
    for _ in range(2):
        request = Request(prompt, LAWS[0], 5, frozenset(), MAX_LEN)
        assert pair.scheduler.run([request]).num_cached == 0


def test_a_lease_that_promises_more_rows_than_there_are_is_refused(load) -> None:
    """Rows that were never written hold zeros: an answer from them would look like one."""
    worker = load("ar").target
    entry = Entry([1] * 40, LAWS[0], 50, num_kept=32)
    with pytest.raises(CapacityError, match=r"begins behind 32 positions.*holds 0"):
        worker.admit(SlotRef(0, 1), entry)


def test_an_llm_goes_on_with_a_chat_and_counts_it() -> None:
    """``chat`` sends the whole conversation each turn; only its end is fed."""
    with (
        LLM.open(tiny().path, mode="ar") as llm,
        LLM.open(tiny().path, mode="ar", prefix_reuse=False) as fresh,
    ):
        ids = [(11 * i) % 320 for i in range(70)]
        first = llm.generate(ids, max_tokens=10)
        turn = [*ids, *first.token_ids, 5, 6, 7]
        second = llm.generate(turn, max_tokens=10, logprobs=1)
        expected = fresh.generate(turn, max_tokens=10, logprobs=1)
        assert (second.token_ids, second.logprobs) == (expected.token_ids, expected.logprobs)
        assert (first.stats.num_cached, second.stats.num_cached) == (0, 64)
        assert llm.generate(turn, max_tokens=2, cache_salt="x").stats.num_cached == 0
        assert expected.stats.num_cached == 0
