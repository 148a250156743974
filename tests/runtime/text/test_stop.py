"""Stop strings against a brute force over the whole text, and what a stream may show of it.

E7: the text was cut at the stop string, the token ids kept its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from runtime.text import Detokenizer, StopText, Tokenizer
from runtime.text.stop import first_stop, num_common
from tests.runtime.text.tiny_tokenizers import TEXT, Words, byte_fallback_bpe, byte_level_bpe

TOKENIZERS = {"byte-level": byte_level_bpe, "byte-fallback": byte_fallback_bpe}
LETTERS = st.text("ab", min_size=1, max_size=5)


def run(stop: StopText, ids: Sequence[int]) -> tuple[str, int, list[str], list[int]]:
    """Text, tokens kept, and after each token what had been shown and was certain by then."""
    shown, certain, text, kept = [], [], "", None
    for token in ids:
        kept = stop.push(token)
        text += stop.take()
        shown.append(text)
        certain.append(stop.num_certain)
        if kept is not None:
            break
    else:
        kept = stop.flush()
    text += stop.take()
    return text, len(ids) if kept is None else kept, shown, certain


def words(pieces: Sequence[str], stops: Sequence[str], **options: int) -> tuple[str, int]:
    return run(StopText(Words(pieces), stops, **options), range(len(pieces)))[:2]


def expected(texts: Sequence[str], stops: Sequence[str], min_tokens: int = 0) -> tuple[str, int]:
    """Text and tokens kept, from ``texts[n]``, the text of the first n tokens: character by
    character, the first place where some stop string ends."""
    whole = texts[-1]
    reach = list(accumulate((num_common(text, whole) for text in texts), max))
    begin = reach[min(min_tokens, len(reach) - 1)]
    for end in range(len(whole) + 1):
        starts = [end - len(stop) for stop in stops if whole[begin:end].endswith(stop)]
        if starts:
            start = min(starts)
            kept = next(n for n, length in enumerate(reach) if length >= start)
            return whole[:start], max(kept, min(min_tokens, len(texts) - 1))
    return whole, len(texts) - 1


@example(pieces=["a", "aa", "b"], stops=["aab"], min_tokens=0)  # overlaps itself
@example(pieces=["a"], stops=["ab"], min_tokens=0)  # only its beginning comes
@example(pieces=["ab"] * 5, stops=["abab", "babb"], min_tokens=3)
@given(
    pieces=st.lists(st.text("ab", max_size=3), max_size=12),
    stops=st.lists(LETTERS, max_size=3),
    min_tokens=st.integers(0, 5),
)
def test_text_and_tokens_end_where_a_search_of_the_whole_text_says(pieces, stops, min_tokens):
    texts = ["".join(pieces[:n]) for n in range(len(pieces) + 1)]
    found = words(pieces, stops, min_tokens=min_tokens)
    assert found == expected(texts, stops, min_tokens)


@pytest.mark.parametrize("kind", sorted(TOKENIZERS))
@given(data=st.data())
def test_the_same_with_real_tokenizers(kind: str, data: st.DataObject) -> None:
    """Any ids: characters and stop strings cut between tokens, invalid bytes, silent tokens."""
    tokenizer = Tokenizer(TOKENIZERS[kind]())
    some = st.integers(0, tokenizer.vocab_size + 2)
    spelled = st.sampled_from(TEXT).map(lambda text: tokenizer.encode(text)[:12])
    parts = data.draw(st.lists(st.lists(some, max_size=4) | spelled, max_size=4))
    ids = list(chain.from_iterable(parts))
    texts = [tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
    within = st.integers(0, max(0, len(texts[-1]) - 1)).flatmap(
        lambda start: st.integers(1, 6).map(lambda size: texts[-1][start : start + size])
    )
    stops = [stop for stop in data.draw(st.lists(within | st.text(max_size=3), max_size=3)) if stop]
    min_tokens = data.draw(st.integers(0, 6))
    stop = StopText(Detokenizer(tokenizer), stops, min_tokens=min_tokens)
    text, kept, shown, certain = run(stop, ids)
    assert (text, kept) == expected(texts, stops, min_tokens)
    assert all(text.startswith(part) for part in shown), "shown and taken back"
    assert certain == sorted(certain)
    assert not certain or certain[-1] <= kept, "certain and taken back"


@example(pieces=["b"], stops=["a", "baa"])  # the longer one can never be complete first
@given(pieces=st.lists(st.text("ab", max_size=3), max_size=8), stops=st.lists(LETTERS, max_size=2))
def test_no_more_is_held_back_than_some_continuation_could_take_back(pieces, stops):
    """For what is held there is a next token that makes all of it part of a stop string."""
    stop = StopText(Words([*pieces, "?"]), stops)
    text, _, shown, _ = run(stop, range(len(pieces)))
    if len(shown) < len(pieces) or not pieces or first_stop("".join(pieces), stops) is not None:
        return
    held = text[len(shown[-1]) :]
    ends = [each[len(held) :] for each in stops if each.startswith(held) and each != held]
    assert held == "" or any(words([*pieces, end], stops)[0] == shown[-1] for end in ends), (
        f"{held!r} is held for nothing"
    )


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "kept"),
    [
        (["x", " ha", " ha", " ha", "!"], [" ha ha ha"], "x", 1),  # E7's input
        (["one\n", "\ntwo"], ["\n\n"], "one", 1),
        (["one\n\n"], ["\n\n"], "one", 1),  # the token that it begins inside of is kept
        (["STOP", "x"], ["STOP"], "", 0),
        (["a", "b", "c"], ["bc", "abc"], "", 0),  # complete at once: the longer one
        (["ab", "c"], ["b", "abc"], "a", 1),  # complete first, though the other begins earlier
        (["S", "T", "x"], ["STOP"], "STx", 3),
    ],
)
def test_places(pieces, stops, text, kept) -> None:
    assert words(pieces, stops) == (text, kept)


def test_a_stop_string_does_not_begin_in_the_prompt() -> None:
    """The prompt's text is never pushed: here it would be "a st", and the answer "op"."""
    assert words(["op", "!"], ["stop"]) == ("op!", 2)


def test_a_stream_goes_on_as_soon_as_a_beginning_fails() -> None:
    stop = StopText(Words(["x\n", "#", "\n", "\n", "#", "# T"]), ["\n## "])
    assert run(stop, range(6))[2] == ["x", "x", "x\n#", "x\n#\n", "x\n#\n", "x\n#\n"]


def test_an_emoji_is_a_stop_string_though_no_token_has_it_whole() -> None:
    tokenizer = Tokenizer(byte_level_bpe())
    ids = tokenizer.encode("the🦜cat")
    num_before = len(tokenizer.encode("the"))
    stop = StopText(Detokenizer(tokenizer), ["🦜"])
    text, kept, shown, _ = run(stop, ids)
    assert (text, kept) == ("the", num_before)
    assert len(shown) == num_before + 3, "three tokens spell it, and nothing more is read"


def test_bytes_that_became_no_character_belong_to_their_token() -> None:
    """Half an emoji, then the stop string: the half shows as U+FFFD, the next token goes."""
    tokenizer = Tokenizer(byte_level_bpe())
    half, cat = tokenizer.encode("🦜")[:1], tokenizer.encode("cat")
    stop = StopText(Detokenizer(tokenizer), [tokenizer.decode(cat[:1])])
    assert run(stop, half + cat)[:2] == ("\ufffd", 1)
