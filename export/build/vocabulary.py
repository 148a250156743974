"""A tokenizer.json as a table of ids, which is all that two models must agree on.

Text is split by the target's tokenizer alone, so rules for splitting do not count; what a token id
spells does, and so do the merge rules, since they decide which ids a text becomes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engines.errors import CheckpointError

NUM_SHOWN = 3
"""Differences that a refusal spells out."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``pieces`` are the texts by id, added tokens included and padding left out; ``num_learned``
    counts the ids up to the last one that is no added token; ``merges`` are a BPE's rules in
    order."""

    pieces: Mapping[int, str]
    num_learned: int
    merges: Sequence[tuple[str, ...]]

    @property
    def num_ids(self) -> int:
        return 1 + max(self.pieces, default=-1)

    def unused(self, num_ids: int) -> tuple[int, ...]:
        """Of the first ``num_ids`` ids those that spell nothing, though a later one does."""
        # Not up to num_ids of its own: a damaged file may name any id of 32 bits.
        last = min(num_ids, self.num_ids)
        return tuple(index for index in range(last) if index not in self.pieces)


def read_vocabulary(tokenizer: bytes, name: str) -> Vocabulary:
    """Parse a tokenizer.json; ``name`` is whose it is. CheckpointError for anything else."""
    document = _parse(tokenizer, name)
    model = document["model"]
    assert isinstance(model, Mapping)
    learned = _learned(model)
    pieces = {**learned, **_added(document)}
    # What converters to GGUF call an id that the original tokenizer does not list.
    named = {index: piece for index, piece in pieces.items() if piece != f"[PAD{index}]"}
    return Vocabulary(named, 1 + max(learned, default=-1), tuple(_merges(model)))


def first_differences(draft: Vocabulary, target: Vocabulary) -> str | None:
    """Where two vocabularies part, in words; None where they do not.

    The ids that both have must spell the same text. One may go on where the other ends (padding,
    or tokens that only one was given).
    """
    num_shared = min(draft.num_ids, target.num_ids)
    different = [
        index
        for index in sorted(draft.pieces.keys() | target.pieces.keys())
        if index < num_shared and draft.pieces.get(index) != target.pieces.get(index)
    ]
    if different:
        texts = (
            f"id {index} is {_shown(draft.pieces.get(index))} in the draft and "
            f"{_shown(target.pieces.get(index))} in the target"
            for index in different[:NUM_SHOWN]
        )
        return f"{', '.join(texts)} ({len(different)} of {num_shared} ids differ)"
    return _first_merge(draft.merges, target.merges)


def _first_merge(ours: Sequence[tuple[str, ...]], theirs: Sequence[tuple[str, ...]]) -> str | None:
    if ours == theirs:
        return None
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((index for index, (mine, other) in pairs if mine != other), None)
    if at is None:
        return f"{len(ours)} merge rules in the draft, {len(theirs)} in the target"
    mine, other = " + ".join(ours[at]), " + ".join(theirs[at])
    return f"merge rule {at} is {mine} in the draft and {other} in the target"


def _parse(tokenizer: bytes, name: str) -> Mapping[str, object]:
    try:
        document: dict[str, object] = json.loads(tokenizer)
        if isinstance(document["model"], dict):
            return document
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise CheckpointError(f"the tokenizer.json of {name} is damaged or not a tokenizer")


def _learned(model: Mapping[str, object]) -> dict[int, str]:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        return {index: piece for piece, index in vocabulary.items() if isinstance(index, int)}
    if isinstance(vocabulary, list):  # Unigram: [[piece, score], ...]
        return {i: str(e[0]) for i, e in enumerate(vocabulary) if isinstance(e, list) and e}
    return {}


def _added(document: Mapping[str, object]) -> dict[int, str]:
    tokens = document.get("added_tokens")
    return {
        token["id"]: str(token.get("content"))
        for token in (tokens if isinstance(tokens, list) else [])
        if isinstance(token, dict) and isinstance(token.get("id"), int)
    }


def _merges(model: Mapping[str, object]) -> Iterable[tuple[str, ...]]:
    """Older files write a pair as one string with a space."""
    merges = model.get("merges")
    for rule in merges if isinstance(merges, list) else []:
        if isinstance(rule, str):
            yield tuple(rule.split(" "))
        else:
            yield tuple(map(str, rule)) if isinstance(rule, list) else (str(rule),)


def _shown(piece: str | None) -> str:
    return "nothing" if piece is None else repr(piece)
