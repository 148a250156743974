"""A text on its way to a C caller: nothing is lost, nor cut inside of a character."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import BackendError
from runtime.completion import Completion, Delta
from runtime.embed.handles import Handles
from runtime.embed.inbox import Inbox, State
from runtime.embed.statuses import HandleError
from runtime.scheduler import Stats

DELTAS = st.lists(
    st.tuples(st.text(max_size=6), st.lists(st.integers(0, 9), max_size=3).map(tuple)), max_size=8
)


def completion() -> Completion:
    stats = Stats(0, 0, 0, None, (), 0.0, 0.0, 0.0, 0.0)
    return Completion("", (), "stop", "ar", None, 1, stats)


@given(DELTAS, st.integers(4, 12), st.integers(1, 4), st.integers(0, 8))
def test_pieces_of_any_size_are_the_whole_text(
    deltas: list[tuple[str, tuple[int, ...]]], most_bytes: int, most_ids: int, num_early: int
) -> None:
    inbox = Inbox()
    text, ids = b"", ()
    for index, (piece, token_ids) in enumerate(deltas):
        inbox.put(Delta(piece, token_ids, None))
        if index < num_early:  # some are read as they come, the rest at the end
            found = inbox.read(0, most_bytes, most_ids)
            text, ids = text + found.text, ids + found.token_ids
    inbox.end(completion())
    while (found := inbox.read(None, most_bytes, most_ids)).state is State.MORE:
        assert len(found.text) <= most_bytes
        assert len(found.token_ids) <= most_ids
        found.text.decode("utf-8")
        text, ids = text + found.text, ids + found.token_ids
    assert text.decode("utf-8") == "".join(piece for piece, _ in deltas)
    assert ids == tuple(each for _, token_ids in deltas for each in token_ids)
    assert inbox.read(0, most_bytes, most_ids).state is State.END


def test_what_is_not_wanted_does_not_end_the_wait() -> None:
    inbox = Inbox()
    inbox.put(Delta("", (1, 2), None))
    assert inbox.read(0, 10, None).state is State.TIMED_OUT
    inbox.put(Delta("a", (3,), None))
    assert inbox.read(0, None, 5).token_ids == (3,)  # 1 and 2 were dropped, and so was the text
    inbox.put(Delta("b", (), None))
    assert inbox.read(0, 10, None).text == b"b"


def test_what_stopped_a_text_comes_behind_its_last_piece_every_time() -> None:
    inbox = Inbox()
    inbox.put(Delta("a", (1,), None))
    inbox.end(BackendError("it broke"))
    assert inbox.read(0, 10, 10).text == b"a"
    for _ in range(2):
        with pytest.raises(BackendError, match="it broke"):
            inbox.read(None, 10, 10)
        with pytest.raises(BackendError, match="it broke"):
            inbox.wait(None)


def test_a_reader_that_waits_without_limit_hears_of_everything() -> None:
    """A change between its look and its wait would be missed for ever."""
    for _ in range(50):
        inbox, both = Inbox(), Barrier(2)

        def write(inbox: Inbox = inbox, both: Barrier = both) -> None:
            both.wait()
            inbox.put(Delta("a", (), None))
            inbox.end(completion())

        writer = Thread(target=write)
        writer.start()
        both.wait()
        assert inbox.read(None, 10, 10).text == b"a"
        assert inbox.read(None, 10, 10).state is State.END
        writer.join()


def test_a_time_that_is_up_or_endless_is_no_error() -> None:
    inbox = Inbox()
    assert inbox.wait(0) is False
    assert inbox.read(0.001, 10, 10).state is State.TIMED_OUT
    inbox.end(completion())
    assert inbox.wait(2.0**63 / 1000) is True


def test_a_handle_is_never_given_out_twice_and_only_its_own_kind_takes_it() -> None:
    models: Handles[str] = Handles("model", "closed")
    texts: Handles[str] = Handles("request", "destroyed")
    first = models.add("a")
    assert models.pop(first) == "a"
    second, other = models.add("b"), texts.add("c")
    assert len({first, second, other, 0}) == 4
    for wrong in (0, first, other, second + 1, 2**64 - 1):
        with pytest.raises(HandleError, match="expected one that is not closed yet"):
            models.get(wrong)
    assert (models.get(second), texts.get(other), models.all()) == ("b", "c", ["b"])
