"""Text on its way from the scheduler to the caller."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from engines.errors import UsageError
from runtime.completion import Answer, TextStream
from runtime.device.seeded import SeededDevice
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.text import Detokenizer, StopText, Tokenizer
from tests.helpers.toy_pair import ToyPair
from tests.runtime.text.tiny_tokenizers import Words, byte_level_bpe


def answer_of(source: Detokenizer | StopText, shown: list[str]) -> Answer:
    stop = source if isinstance(source, StopText) else None
    request = Request([1], SamplingParams(), 99, frozenset({98}), 999, stop=stop)
    return Answer(request, source, lambda delta: shown.append(delta.text) if delta.text else None)


def test_text_may_become_certain_without_a_token() -> None:
    """The stop string overlaps itself: its beginning moves on within a token."""
    shown: list[str] = []
    answer = answer_of(StopText(Words(["xS", "S", "S", "!"]), ["SST"]), shown)
    for token, certain in ((0, [0]), (1, []), (2, []), (3, [1, 2, 3])):
        taken = answer.request.commit([token])
        assert taken == certain
        answer.take(taken)
    assert shown == ["x", "S", "SS!"]


class Stutter(Words):
    """Whatever the tokens are: first "xS", then "S" again and again."""

    def feed(self, _ids: Sequence[int]) -> str:
        piece, self.words = self.words[0], ["S"]
        return piece


def test_the_scheduler_hands_on_text_without_a_token() -> None:
    """It called for new tokens only, and the text came a round late."""
    answer = answer_of(StopText(Stutter(["xS"]), ["SST"]), [])
    answer.request.max_tokens = 6
    pair = ToyPair(SeededDevice(0), "ar")
    progress: list[tuple[int, str]] = []

    def take(tokens: list[int]) -> None:
        answer.take(tokens)
        progress.append((len(tokens), answer.text))

    pair.scheduler.submit(answer.request, take)
    while pair.scheduler.step():
        pass
    assert progress[:4] == [(1, "x"), (0, "x"), (0, "xS"), (1, "xSS")]
    assert answer.text == "xSSSSSS"


def test_an_answer_ends_with_what_was_held_once() -> None:
    shown: list[str] = []
    answer = answer_of(StopText(Words(["x", "S"]), ["SST"]), shown)
    answer.take(answer.request.commit([0, 1, 98]))
    answer.finish()
    answer.finish()
    assert (shown, answer.text, answer.found) == (["xS"], "xS", None)


def test_an_emoji_cut_off_at_the_end_is_shown_at_the_end() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("cat🦜")
    shown: list[str] = []
    answer = answer_of(Detokenizer(tokenizer), shown)
    answer.take(answer.request.commit(ids[:-1]))
    assert answer.text == "cat"
    answer.finish()
    assert answer.text == "cat\ufffd" == "".join(shown)


def test_a_muted_answer_still_knows_its_text() -> None:
    shown: list[str] = []
    answer = answer_of(StopText(Words(["a", "b"]), []), shown)
    answer.take(answer.request.commit([0]))
    answer.mute()
    answer.take(answer.request.commit([1]))
    assert (shown, answer.text) == (["a"], "ab")


def test_a_stream_tells_the_rest_when_it_is_complete() -> None:
    stream = TextStream((piece for piece in "ab"), lambda: None)
    with stream:
        assert next(stream) == "a"
    assert list(stream) == []
    with pytest.raises(UsageError, match="not complete"):
        _ = stream.completion
