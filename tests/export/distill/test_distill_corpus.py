"""Training text: labels, hold-out and reading (numpy alone)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engines.errors import UsageError
from export.distill.corpus import Sample, collate, cut, hold_out, load, order
from export.distill.vocabulary import choose_ids, offsets, to_draft


def sample(prompt: list[int], answer: list[int], temperature: float = 0.0) -> Sample:
    return Sample(np.array([*prompt, *answer], np.int64), len(prompt), temperature)


def write_npz(path: Path, **changes: np.ndarray) -> Path:
    arrays = {
        "ids": np.array([5, 6, 7, 8, 9, 10], np.uint16),
        "lens": np.array([4, 2], np.int32),
        "answer_start": np.array([2, 1], np.int32),
        "temperature": np.array([0.0, 0.7], np.float32),
    }
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array.size})
    return path


def test_labels_are_the_answers_and_nothing_else() -> None:
    """Training on prompt tokens teaches the draft to speak as the user."""
    batch = collate([sample([10, 11, 12], [20, 21]), sample([13], [22, 23, 24])])
    assert batch.tokens.tolist() == [[10, 11, 12, 20, 21], [13, 22, 23, 24, 0]]
    assert batch.labels.tolist() == [[-1, -1, 20, 21, -1], [22, 23, 24, -1, -1]]
    assert batch.num_tokens == 9


def test_a_pass_visits_every_sequence_once_and_like_lengths_together() -> None:
    lengths = [1 + i % 40 for i in range(150)]
    parts = order(lengths, 4, np.random.default_rng(0))
    assert sorted(index for part in parts for index in part) == list(range(150))
    spread = [max(lengths[i] for i in part) - min(lengths[i] for i in part) for part in parts]
    assert np.mean(spread) < 3
    assert parts != order(lengths, 4, np.random.default_rng(1))


def test_states_stand_at_their_positions() -> None:
    """A state beside the wrong token teaches every label one place off."""
    first = replace(sample([10, 11], [20]), states=np.full((2, 4), 1, np.float16))  # one short
    second = replace(sample([12], [21, 22, 23]), states=np.full((4, 4), 2, np.float16))
    batch = collate([first, second])
    assert batch.known.tolist() == [0, 1, 4, 5, 6, 7]
    assert batch.states[:, 0].tolist() == [1, 1, 2, 2, 2, 2]


def test_cut_cuts_states_too() -> None:
    [kept] = cut([replace(sample([1], [5, 6, 7]), states=np.zeros((4, 2), np.float16))], 3)
    assert kept.states is not None
    assert (len(kept), len(kept.states)) == (3, 3)


def test_one_prompt_is_never_on_both_sides() -> None:
    """Answers to one prompt share most of their words: held out alone, they flatter the draft."""
    samples = [sample([3, prompt], [9, prompt, copy]) for prompt in range(50) for copy in range(3)]
    training, held = hold_out(samples, 0.1, seed=1)
    sides = [{int(s.ids[1]) for s in side} for side in (training, held)]
    assert not sides[0] & sides[1]
    assert (len(training), len(held)) == (135, 15)


def test_one_prompt_cannot_be_split() -> None:
    with pytest.raises(UsageError, match="1 different prompt"):
        hold_out([sample([3], [4]), sample([3], [5])], 0.5, seed=0)


def test_cut_drops_sequences_without_an_answer() -> None:
    kept = cut([sample([1, 2, 3, 4], [5]), sample([1], [5, 6, 7, 8]), sample([1, 2], [])], 4)
    assert [s.ids.tolist() for s in kept] == [[1, 5, 6, 7]]


def test_load_reads_what_is_described(tmp_path: Path) -> None:
    first, second = load([write_npz(tmp_path / "d.npz")], vocab_size=11)
    assert (first.ids.tolist(), first.answer_start, first.temperature) == ([5, 6, 7, 8], 2, 0.0)
    assert (second.ids.tolist(), second.answer_start) == ([9, 10], 1)
    assert second.temperature == pytest.approx(0.7)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lens": np.array([4, 3])}, "sum"),
        ({"lens": np.array([7, -1])}, "answer_start <= length"),
        ({"temperature": np.array([0.0])}, "one length"),
        ({"answer_start": np.array([0, 1])}, "1 <= answer_start"),
        ({"answer_start": np.array([2, 3])}, "1 <= answer_start"),
        ({"answer_start": np.array([])}, "answer_start"),
        ({"ids": np.array([5, 6, 7, 8, 9, 11])}, "vocabulary of 11"),
        ({"ids": np.array([5, 6, 7, 8, 9, -1])}, "vocabulary of 11"),
        ({"ids": np.array([0.5] * 6)}, "integers"),
        ({"temperature": np.array([[0.0], [0.7]])}, "row of floats"),
        ({"ids": np.array(["a"] * 6, dtype=object)}, "npz archive"),
    ],
)
def test_damaged_data_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, np.ndarray], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load([write_npz(tmp_path / "d.npz", **changes)], vocab_size=11)
    assert "\n" not in str(caught.value)
    assert "--data" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "d.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="npz archive"):
        load([path], vocab_size=11)


def test_damage_inside_the_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.npz"
    np.savez_compressed(path, ids=np.arange(5000, dtype=np.uint16))
    content = bytearray(path.read_bytes())
    content[200:260] = bytes(60)
    path.write_bytes(content)
    with pytest.raises(UsageError, match="npz archive"):
        load([path], vocab_size=11)


def test_missing_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load([tmp_path / "none.npz"], vocab_size=11)


def test_vocabulary_takes_ends_then_answers_then_prompts_then_low_ids() -> None:
    samples = [sample([30, 30, 30, 40], [50, 51, 51]), sample([30], [51])]
    ids = choose_ids(samples, 64, 6, always=[2])
    assert ids.tolist() == [0, 2, 30, 40, 50, 51]


def test_map_is_stored_as_offsets_and_inverted() -> None:
    """V8: absolute ids stored as offsets reach the target doubled."""
    ids = np.array([0, 2, 3, 9])
    assert (np.arange(4) + offsets(ids)).tolist() == ids.tolist()
    assert to_draft(ids, 10).tolist() == [0, -1, 1, 2, -1, -1, -1, -1, -1, 3]
