"""Do a draft and a target belong together? Tokenizers, vocabularies, maps, widths, lengths.

Speculation carries token ids from one model to the other, so an id must mean the same text in
both. What may differ: the padding at the end of an embedding table, everything inside the
models, and the text-splitting rules of the draft's tokenizer (only the target's is used).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.errors import BundleCorruptError, CheckpointError, PairError, UsageError
from engines.manifest import DraftFigures
from export.checkpoint.api import Checkpoint
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING, HEAD


@dataclasses.dataclass(frozen=True, slots=True)
class DraftView:
    """The draft as it is built: its vocabulary cut to the target's where only padding is longer."""

    spec: ModelSpec
    checkpoint: Checkpoint
    vocab_map: npt.NDArray[np.int32] | None  # [draft vocabulary], target ids

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A weight, as ``Checkpoint.tensor``, without the rows of ids that the target lacks."""
        array = self.checkpoint.tensor(name)
        if name == EMBEDDING or (name == HEAD and self.vocab_map is None):
            return array[: self.spec.vocab_size]
        return array


def check_target(target: Checkpoint, max_len: int) -> bytes:
    """The target's tokenizer.json. CheckpointError, or UsageError when ``max_len`` is too long."""
    if max_len > target.spec.max_position:
        raise UsageError(
            f"--max-len {max_len} is beyond the {target.spec.max_position} positions that "
            f"{target.name} was made for; use --max-len {target.spec.max_position} or less"
        )
    tokenizer = target.tokenizer_json()
    if tokenizer is None:
        raise CheckpointError(
            f"{target.name} has no tokenizer.json, and without it text cannot become tokens; "
            "put the file beside config.json"
        )
    largest = max(_pieces(_parse(tokenizer, target.name)), default=-1)
    if largest >= target.spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer of {target.name} gives ids up to {largest}, but the model has only "
            f"{target.spec.vocab_size} embeddings"
        )
    _require_usable(tokenizer, target.name)
    return tokenizer


def _require_usable(tokenizer: bytes, name: str) -> None:
    """CheckpointError for a tokenizer.json that the tokenizers library cannot load."""
    from runtime.text import Tokenizer

    try:
        Tokenizer(tokenizer)
    except BundleCorruptError as error:
        reason = str(error).removesuffix("; rebuild the bundle")
        raise CheckpointError(f"{name}: {reason}; fetch the checkpoint again") from None


def check_pair(target: Checkpoint, draft: Checkpoint, max_len: int) -> DraftView:
    """The draft as it has to be built for ``target``. Raises PairError, naming both."""
    ours, theirs = draft.spec, target.spec
    names = f"draft {draft.name} and target {target.name}"
    if max_len > ours.max_position:
        raise PairError(
            f"--max-len {max_len} is beyond the {ours.max_position} positions of the draft "
            f"{draft.name}; use --max-len {ours.max_position} or another draft"
        )
    tokenizer = draft.tokenizer_json()
    if tokenizer is not None:
        _require_usable(tokenizer, draft.name)
        difference = compare_tokenizers(tokenizer, target.tokenizer_json() or b"", draft, target)
        if difference is not None:
            raise PairError(f"{names} have different tokenizers: {difference}; use another draft")
    elif ours.vocab_size != theirs.vocab_size:
        raise PairError(
            f"{names} do not fit: the draft has no tokenizer of its own and {ours.vocab_size} "
            f"embeddings, the target has {theirs.vocab_size}"
        )
    if ours.embeddings_from_target and (ours.hidden_size, ours.vocab_size) != (
        theirs.hidden_size,
        theirs.vocab_size,
    ):
        raise PairError(
            f"{names} do not fit: the draft uses the target's embeddings and expects "
            f"[{ours.vocab_size}, {ours.hidden_size}], the target has "
            f"[{theirs.vocab_size}, {theirs.hidden_size}]"
        )
    vocab_map = _checked_map(draft, theirs.vocab_size)
    spec = dataclasses.replace(
        ours,
        vocab_size=min(ours.vocab_size, theirs.vocab_size),
        draft_vocab_size=None if vocab_map is None else len(vocab_map),
    )
    return DraftView(spec, draft, vocab_map)


def _checked_map(draft: Checkpoint, target_vocab: int) -> npt.NDArray[np.int32] | None:
    """The draft's ids in target ids, all of which the target must have."""
    vocab_map = draft.draft_map()
    if vocab_map is not None and vocab_map.max() >= target_vocab:
        raise PairError(
            f"the id map of draft {draft.name} leads to id {vocab_map.max()}, "
            f"the target has ids 0 to {target_vocab - 1}"
        )
    return vocab_map


def compare_tokenizers(
    ours: bytes, theirs: bytes, draft: Checkpoint, target: Checkpoint
) -> str | None:
    """The first difference that matters between two tokenizer.json, in words; None when equal.

    The ids that both have must spell the same text, added tokens included, and the merge rules
    must be the same. One may go on where the other ends (padding, or tokens only one was given).
    """
    left, right = _parse(ours, draft.name), _parse(theirs, target.name)
    pieces, target_pieces = _pieces(left), _pieces(right)
    shared_end = min(max(pieces, default=-1), max(target_pieces, default=-1)) + 1
    for index in range(shared_end):
        mine, other = pieces.get(index), target_pieces.get(index)
        if mine != other:
            return f"id {index} is {_shown(mine)} in the draft and {_shown(other)} in the target"
    merges, target_merges = _merges(left), _merges(right)
    if merges != target_merges:
        pairs = zip(merges, target_merges, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            return f"{len(merges)} merge rules in the draft, {len(target_merges)} in the target"
        return (
            f"merge rule {at} is {' + '.join(merges[at])} in the draft and "
            f"{' + '.join(target_merges[at])} in the target"
        )
    return None


def _parse(tokenizer: bytes, name: str) -> Mapping[str, object]:
    try:
        document = json.loads(tokenizer)
        if isinstance(document["model"], dict):
            return document  # type: ignore[no-any-return]
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise CheckpointError(f"the tokenizer.json of {name} is damaged or not a tokenizer")


def _pieces(document: Mapping[str, object]) -> dict[int, str]:
    """Every token's text by id: the model's vocabulary and the added tokens."""
    model = document["model"]
    assert isinstance(model, dict)
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        pieces = {index: piece for piece, index in vocabulary.items() if isinstance(index, int)}
    elif isinstance(vocabulary, list):  # Unigram: [[piece, score], ...]
        pieces = {i: str(e[0]) for i, e in enumerate(vocabulary) if isinstance(e, list) and e}
    else:
        pieces = {}
    added = document.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            pieces[token["id"]] = str(token.get("content"))
    return pieces


def _merges(document: Mapping[str, object]) -> list[tuple[str, ...]]:
    """BPE merge rules in order; older files write a pair as one string with a space."""
    model = document["model"]
    assert isinstance(model, dict)
    merges = model.get("merges")
    rules = merges if isinstance(merges, list) else []
    return [tuple(rule.split(" ") if isinstance(rule, str) else map(str, rule)) for rule in rules]


def _shown(piece: str | None) -> str:
    return "nothing" if piece is None else repr(piece)


def draft_figures(draft: Checkpoint) -> DraftFigures | None:
    """What the draft's maker measured ("measured" in its config.json), or None."""
    path: Path = draft.path / "config.json"
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))["measured"]
        ranks = tuple(float(share) for share in measured["rank_shares"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return DraftFigures(ranks) if ranks and all(0 <= share <= 1 for share in ranks) else None
