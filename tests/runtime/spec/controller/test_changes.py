"""What a controller says: the note is the last change, and not every one is told."""

from __future__ import annotations

from runtime.spec.controller.changes import SPACING, Changes


def test_the_last_line_is_the_note_told_or_not() -> None:
    told: list[str] = []
    changes = Changes(told.append)
    for number in range(SPACING):
        changes.add(number, f"line {number}")
    assert told == ["line 0"]
    assert changes.note == f"line {SPACING - 1}"


def test_a_log_is_not_flooded_and_says_what_it_left_out() -> None:
    told: list[str] = []
    changes = Changes(told.append)
    changes.add(0, "a")
    changes.add(1, "b")
    changes.add(SPACING - 1, "c")
    assert told == ["a"]
    changes.add(SPACING, "d")
    changes.add(3 * SPACING, "e")
    assert told == ["a", "d (2 changes in between)", "e"]


def test_the_last_change_is_told_even_if_none_follows() -> None:
    told: list[str] = []
    changes = Changes(told.append)
    changes.add(0, "a")
    changes.add(3, "b")
    changes.tell_rest(SPACING - 1)
    assert told == ["a"]
    changes.tell_rest(SPACING)
    changes.tell_rest(5 * SPACING)
    assert told == ["a", "b"]
