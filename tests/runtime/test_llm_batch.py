"""Many prompts at once, streams, and ending them from outside."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from engines.errors import CapacityError, SsdError, UsageError
from runtime.llm import LLM, Completion
from runtime.sampling.params import SamplingParams
from tests.helpers.tiny_bundle import tiny_bundle

PROMPT = [7, 8, 9, 10]
SAMPLED = SamplingParams(temperature=4.0, seed=1)
WAYS = [("ar", "zero"), ("sd", "zero"), ("ssd", "zero"), ("ssd", "jit"), ("ssd", "lookup")]
PROMPTS = [[3 + i] * (1 + 11 * i % 40) for i in range(8)]
"""More than fit at once, of uneven lengths: rows join and leave while others go on."""
LAWS = [SamplingParams(temperature=0.0 if i % 3 == 0 else 4.0, seed=i) for i in range(8)]


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def llm(request: pytest.FixtureRequest) -> Iterator[LLM]:
    mode, fallback = request.param
    with LLM.open(tiny_bundle(tied=False).path, mode=mode, fallback=fallback) as opened:
        yield opened


@pytest.fixture(scope="module")
def alone() -> list[Completion]:
    """Each prompt's answer by plain decoding, one after another."""
    with LLM.open(tiny_bundle(tied=False).path, mode="ar", max_batch=1) as plain:
        return [
            plain.generate(prompt, law, max_tokens=20)
            for prompt, law in zip(PROMPTS, LAWS, strict=True)
        ]


def test_a_text_does_not_depend_on_its_batch_mates(llm: LLM, alone: list[Completion]) -> None:
    """S12, too: greedy and sampled rows with seeds of their own, in slots that change hands."""
    done: list[int] = []
    pieces: dict[int, str] = {}

    def on_text(index: int, piece: str) -> None:
        assert index not in done
        pieces[index] = pieces.get(index, "") + piece

    answers = llm.generate_batch(
        PROMPTS,
        LAWS,
        max_tokens=20,
        on_text=on_text,
        on_done=lambda index, _answer: done.append(index),
    )
    assert [each.token_ids for each in answers] == [each.token_ids for each in alone]
    assert [pieces[index] for index in range(8)] == [each.text for each in alone]
    assert sorted(done) == list(range(8))
    assert all(each.stats.num_tokens == len(each.token_ids) for each in answers)


def test_one_law_for_all_and_no_prompt_at_all(llm: LLM) -> None:
    one = llm.generate(PROMPT, SAMPLED, max_tokens=6)
    both = llm.generate_batch([PROMPT, PROMPT], SAMPLED, max_tokens=6)
    assert [each.token_ids for each in both] == [one.token_ids] * 2
    assert llm.generate_batch([]) == []


def test_what_is_wrong_with_a_batch_is_told_before_it_begins(llm: LLM) -> None:
    with pytest.raises(UsageError, match="prompt 1: the prompt is empty"):
        llm.generate_batch([PROMPT, []])
    with pytest.raises(CapacityError, match="prompt 0: the prompt has 200 tokens"):
        llm.generate_batch([[5] * 200])
    with pytest.raises(UsageError, match="2 params for 1 prompts"):
        llm.generate_batch([PROMPT], [SAMPLED] * 2)
    with pytest.raises(UsageError, match="unknown option 'max_token', expected max_tokens"):
        llm.generate(PROMPT, max_token=5)  # type: ignore[call-arg]


def test_more_slots_than_were_built_are_refused() -> None:
    path = tiny_bundle(tied=False).path
    with pytest.raises(CapacityError, match=r"a batch of 4.*built for 3.*--max-batch 4"):
        LLM.open(path, mode="ar", max_batch=4)
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(UsageError, match="max_batch"):
            LLM.open(path, mode="ar", max_batch=wrong)  # type: ignore[arg-type]


def test_a_stream_is_the_text_in_pieces(llm: LLM) -> None:
    whole = llm.generate(PROMPT, SAMPLED, max_tokens=30)
    with llm.stream(PROMPT, SAMPLED, max_tokens=30) as stream:
        pieces = list(stream)
    assert len(pieces) > 3
    assert "".join(pieces) == whole.text
    assert stream.completion.token_ids == whole.token_ids
    assert stream.completion.finish_reason == "length"


def test_a_stream_never_shows_what_a_stop_string_takes_back(llm: LLM) -> None:
    text = llm.generate(PROMPT, SAMPLED, max_tokens=30).text
    stop = text[9:14]
    with llm.stream(PROMPT, SAMPLED, max_tokens=30, stop=[stop, text[9:12] + "never"]) as stream:
        shown = ""
        for piece in stream:
            shown += piece
            assert text[: text.index(stop)].startswith(shown)
    assert shown == text[: text.index(stop)] == stream.completion.text


def test_a_stream_that_is_closed_early_is_cancelled_and_frees_its_place(llm: LLM) -> None:
    whole = llm.generate(PROMPT, SAMPLED, max_tokens=60)
    for _ in range(5):  # more often than there are slots
        stream = llm.stream(PROMPT, SAMPLED, max_tokens=60)
        next(stream)
        with pytest.raises(UsageError, match="not complete"):
            _ = stream.completion
        with pytest.raises(UsageError, match="in the middle of another"):
            llm.generate(PROMPT)
        stream.close()
        cut = stream.completion
        assert cut.finish_reason == "cancelled"
        assert 0 < len(cut.token_ids) < 60
        assert whole.token_ids[: len(cut.token_ids)] == cut.token_ids
        assert list(stream) == []
    assert llm.generate(PROMPT, SAMPLED, max_tokens=60).token_ids == whole.token_ids


def test_a_stream_that_is_forgotten_does_not_block_the_model(llm: LLM) -> None:
    next(llm.stream(PROMPT, SAMPLED, max_tokens=60))
    gc.collect()
    assert llm.generate(PROMPT, max_tokens=3).token_ids


def test_what_is_wrong_with_a_stream_is_told_at_once(llm: LLM) -> None:
    with pytest.raises(UsageError, match="empty"):
        llm.stream([])
    unread = llm.stream(PROMPT)
    unread.close()
    assert unread.completion.finish_reason == "cancelled"
    assert llm.generate(PROMPT, max_tokens=3).token_ids


def test_another_thread_can_end_a_text(llm: LLM) -> None:
    """It waits here until the text has begun; nothing else would end it for 100 tokens."""
    begun, cancelled = threading.Event(), threading.Event()

    def end() -> None:
        begun.wait()
        llm.cancel()
        cancelled.set()

    def on_text(_piece: str) -> None:
        begun.set()
        cancelled.wait()

    thread = threading.Thread(target=end)
    thread.start()
    answer = llm.generate(PROMPT, SAMPLED, max_tokens=100, on_text=on_text)
    thread.join()
    assert answer.finish_reason == "cancelled"
    assert len(answer.token_ids) < 100
    plain = llm.generate(PROMPT, SAMPLED, max_tokens=100)
    assert plain.token_ids[: len(answer.token_ids)] == answer.token_ids
    assert plain.finish_reason == "length"


def test_one_prompt_of_a_batch_can_be_cancelled(llm: LLM, alone: list[Completion]) -> None:
    """Also one that still waits for a slot; the others do not notice."""

    def on_text(index: int, _piece: str) -> None:
        if index == 1:
            llm.cancel(1)
            llm.cancel(7)

    answers = llm.generate_batch(PROMPTS, LAWS, max_tokens=20, on_text=on_text)
    reasons = [each.finish_reason for each in answers]
    assert (reasons[1], reasons[7]) == ("cancelled", "cancelled")
    assert answers[7].token_ids == ()
    assert answers[7].stats.num_rounds == 0
    for index in {*range(8)} - {1, 7}:
        assert answers[index].token_ids == alone[index].token_ids


def test_cancelling_nothing_is_nothing(llm: LLM) -> None:
    llm.cancel()
    llm.cancel(3)
    assert llm.generate(PROMPT, max_tokens=3).finish_reason == "length"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_callers_code_ends_all_rows_and_the_next_batch_is_exact(
    llm: LLM, alone: list[Completion], error: type[BaseException]
) -> None:
    """Raised inside a step (a piece of text), or between two (an answer is done)."""

    failed: list[int] = []

    def listen(index: int, _what: object) -> None:
        assert not failed, "called again after it failed"
        if index == 2:
            failed.append(index)
            raise error

    for listener in ("on_text", "on_done"):
        failed.clear()
        quiet = {"on_text": lambda _index, _piece: listen(0, None), "on_done": lambda *_: None}
        with pytest.raises(error):
            llm.generate_batch(PROMPTS, LAWS, max_tokens=20, **{**quiet, listener: listen})
        again = llm.generate_batch(PROMPTS, LAWS, max_tokens=20)
        assert [each.token_ids for each in again] == [each.token_ids for each in alone]


def test_a_stream_of_a_closed_model_ends_without_noise() -> None:
    llm = LLM.open(tiny_bundle(tied=False).path, mode="ssd")
    stream = llm.stream(PROMPT, max_tokens=60)
    next(stream)
    llm.close()
    stream.close()
    with pytest.raises(SsdError, match="closed"):
        next(llm.stream(PROMPT))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fallback": "none"}, "unknown fallback 'none'; --fallback takes zero, jit, lookup"),
        ({"saguaro": 1.5, "verify": "ratio"}, "saguaro is 1.5"),
        ({"saguaro": "much", "verify": "ratio"}, "saguaro is 'much'"),
        ({"saguaro": True, "verify": "ratio"}, "saguaro is True"),
        ({"saguaro": float("nan"), "verify": "ratio"}, "saguaro is nan"),
        ({"saguaro": 0.5}, "add --verify ratio"),
        ({"saguaro": "auto"}, "add --verify ratio"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        LLM.open(tiny_bundle(tied=False).path, mode="ssd", **options)  # type: ignore[arg-type]
