"""Do a draft and a target belong together, and which of their token ids are built?

Speculation carries token ids from one model to the other, so an id must mean the same text in
both. What may differ: the padding at the end of an embedding table, everything inside the
models, and the text-splitting rules of the draft's tokenizer (only the target's is used).

Embedding tables are often padded to a round size. The rows beyond the tokenizer's last id stand
for no text; they are left out of what is built. A bundle's target therefore has no logit for them
to choose, whatever verifies, and a draft none to propose.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.errors import (
    BundleCorruptError,
    CheckpointError,
    MissingDependencyError,
    PairError,
    UsageError,
)
from engines.manifest import DraftFigures
from export.build.vocabulary import Vocabulary, first_differences, read_vocabulary
from export.checkpoint.api import Checkpoint
from export.checkpoint.spec import ModelSpec
from export.checkpoint.weights import EMBEDDING, HEAD


@dataclasses.dataclass(frozen=True, slots=True)
class TargetView:
    """The target as it is built: without the padding of its vocabulary."""

    spec: ModelSpec
    checkpoint: Checkpoint

    @property
    def num_padding(self) -> int:
        """Ids of the checkpoint that no text becomes."""
        return self.checkpoint.spec.vocab_size - self.spec.vocab_size

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A weight, as ``Checkpoint.tensor``, without the rows of padding."""
        array = self.checkpoint.tensor(name)
        return array[: self.spec.vocab_size] if name in (EMBEDDING, HEAD) else array


@dataclasses.dataclass(frozen=True, slots=True)
class DraftView:
    """The draft as it is built: its vocabulary cut to the ids that it shares with the target."""

    spec: ModelSpec
    checkpoint: Checkpoint
    vocab_map: npt.NDArray[np.int32] | None  # [draft vocabulary], target ids
    kept: npt.NDArray[np.intp] | None  # rows of the head that ``vocab_map`` is of

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """A weight, as ``Checkpoint.tensor``, without the rows of ids that the target lacks."""
        array = self.checkpoint.tensor(name)
        if name == HEAD and self.kept is not None:
            return array[self.kept]
        return array[: self.spec.vocab_size] if name in (EMBEDDING, HEAD) else array


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
    num_learned = read_vocabulary(tokenizer, target.name).num_learned
    if num_learned > target.spec.vocab_size:
        raise CheckpointError(
            f"the tokenizer of {target.name} gives ids up to {num_learned - 1}, but the model has "
            f"only {target.spec.vocab_size} embeddings"
        )
    _require_usable(tokenizer, target.name)
    return tokenizer


def view_target(target: Checkpoint) -> TargetView:
    """``target`` without padding; whole where it has no tokenizer. CheckpointError."""
    spec, tokenizer = target.spec, target.tokenizer_json()
    if tokenizer is None:
        return TargetView(spec, target)
    own = (*spec.eos_token_ids, -1 if spec.bos_token_id is None else spec.bos_token_id)
    num_ids = max(read_vocabulary(tokenizer, target.name).num_ids, 1 + max(own))
    size = min(spec.vocab_size, num_ids) if num_ids else spec.vocab_size
    return TargetView(dataclasses.replace(spec, vocab_size=size), target)


def _require_usable(tokenizer: bytes, name: str) -> None:
    """CheckpointError for a tokenizer.json without tokens, or that the library cannot load."""
    from runtime.text import Tokenizer

    try:
        Tokenizer(tokenizer)
    except BundleCorruptError as error:
        reason = str(error).removesuffix("; rebuild the bundle")
        raise CheckpointError(f"{name}: {reason}; fetch the checkpoint again") from None
    if not read_vocabulary(tokenizer, name).pieces:
        raise CheckpointError(
            f"{name}: the vocabulary in its tokenizer.json is empty; fetch the checkpoint again"
        )


def check_pair(target: Checkpoint, draft: Checkpoint, max_len: int) -> DraftView:
    """The draft as it has to be built for ``target``. Raises PairError, naming both."""
    ours, theirs = draft.spec, target.spec
    names = f"draft {draft.name} and target {target.name}"
    if max_len > ours.max_position:
        raise PairError(
            f"--max-len {max_len} is beyond the {ours.max_position} positions of the draft "
            f"{draft.name}; use --max-len {ours.max_position} or another draft"
        )
    num_ids = view_target(target).spec.vocab_size
    num_shared = min(ours.vocab_size, num_ids)
    tokenizer = draft.tokenizer_json()
    if tokenizer is not None:
        num_shared = min(num_shared, _same_vocabulary(tokenizer, draft, target).num_ids)
    elif ours.vocab_size not in (theirs.vocab_size, num_ids):
        raise PairError(
            f"{names} do not fit: the draft has no tokenizer of its own and {ours.vocab_size} "
            f"embeddings, the target has {theirs.vocab_size}; {_way_out(target)}"
        )
    if ours.embeddings_from_target and (
        ours.hidden_size != theirs.hidden_size or ours.vocab_size < num_ids
    ):
        raise PairError(
            f"{names} do not fit: the draft uses the target's embeddings and expects "
            f"[{ours.vocab_size}, {ours.hidden_size}], the target has "
            f"[{theirs.vocab_size}, {theirs.hidden_size}]; {_way_out(target)}"
        )
    vocab_map, kept = _checked_map(draft, theirs.vocab_size, num_shared)
    spec = dataclasses.replace(
        ours,
        vocab_size=num_shared,
        # Its own ends of text end nothing: those of the target count.
        eos_token_ids=tuple(token for token in ours.eos_token_ids if token < num_shared),
        bos_token_id=None if (ours.bos_token_id or 0) >= num_shared else ours.bos_token_id,
        draft_vocab_size=None if vocab_map is None else len(vocab_map),
    )
    return DraftView(spec, draft, vocab_map, kept)


def _same_vocabulary(tokenizer: bytes, draft: Checkpoint, target: Checkpoint) -> Vocabulary:
    """The draft's vocabulary; PairError where it is another one than the target's."""
    _require_usable(tokenizer, draft.name)
    ours = read_vocabulary(tokenizer, draft.name)
    theirs = read_vocabulary(target.tokenizer_json() or b"", target.name)
    difference = first_differences(ours, theirs)
    if difference is None:
        return ours
    raise PairError(
        f"draft {draft.name} and target {target.name} have different tokenizers, so an id drafted "
        f"by one means another text to the other: {difference}; {_way_out(target)}"
    )


def _way_out(target: Checkpoint) -> str:
    return (
        "use a draft with the target's tokenizer, or train one: "
        f"python -m export distill --target {target.name}"
    )


def _checked_map(
    draft: Checkpoint, target_vocab: int, num_shared: int
) -> tuple[npt.NDArray[np.int32] | None, npt.NDArray[np.intp] | None]:
    """The draft's ids in target ids, and the rows of its head that they are of.

    A map may lead to ids that the two do not share, such as the target's padding: those rows are
    left out. A proposal is fed back to the draft, so it must have an embedding there, too.
    PairError where a map leads beyond the target's embeddings, or to no shared id.
    """
    vocab_map = draft.draft_map()
    if vocab_map is None:
        return None, None
    if vocab_map.max() >= target_vocab:
        raise PairError(
            f"the id map of draft {draft.name} leads to id {vocab_map.max()}, "
            f"the target has ids 0 to {target_vocab - 1}"
        )
    kept = np.flatnonzero(vocab_map < num_shared)
    if kept.size == 0:
        raise PairError(
            f"the id map of draft {draft.name} leads to padding alone, "
            f"the tokens of both models are ids 0 to {num_shared - 1}"
        )
    return vocab_map[kept], kept


def pair_notes(target: Checkpoint, draft: Checkpoint) -> list[str]:
    """What differs between the two, may be meant, and often is not: a line each.

    A draft that borrows the target's embeddings was derived from it, so that other positions or
    norms in its config.json are a mistake; they cost acceptance, never a wrong text.
    """
    ours, theirs = draft.spec, target.spec
    is_derived = ours.embeddings_from_target
    names = ["rope_theta", "rope_scaling", *(["rms_norm_eps"] if is_derived else [])]
    comment = (
        ("warning", "it was derived from this target, and drafts badly if that is a mistake")
        if is_derived
        else ("note", "fine for a draft trained that way")
    )
    found = [
        f"{comment[0]}: {name} is {_value(mine)} in the draft and {_value(other)} in the target "
        f"({comment[1]})"
        for name in names
        if (mine := getattr(ours, name)) != (other := getattr(theirs, name))
    ]
    special = target.special_tokens()
    found += [
        f"note: {role} is {text!r} in the draft and {special[role]!r} in the target, "
        "whose own counts"
        for role, text in draft.special_tokens().items()
        if role in special and special[role] != text
    ]
    return found


def target_notes(view: TargetView) -> list[str]:
    """What is special about the target's vocabulary and chat template: a line each."""
    checkpoint, found = view.checkpoint, []
    if view.num_padding:
        found.append(
            f"{checkpoint.name} has {checkpoint.spec.vocab_size} embeddings for "
            f"{view.spec.vocab_size} tokens; the padding is left out"
        )
    vocabulary = read_vocabulary(checkpoint.tokenizer_json() or b"", checkpoint.name)
    beyond = sorted(index for index in vocabulary.pieces if index >= view.spec.vocab_size)
    if beyond:
        found.append(
            f"note: {vocabulary.pieces[beyond[0]]!r} (id {beyond[0]}) has no embedding in "
            f"{checkpoint.name}; a prompt that holds it is refused"
        )
    unused = vocabulary.unused(view.spec.vocab_size)
    if unused:
        found.append(
            f"note: {len(unused)} ids between tokens of {checkpoint.name} spell nothing "
            f"({unused[0]} is the first)"
        )
    return found + _template_notes(checkpoint)


def _template_notes(target: Checkpoint) -> list[str]:
    """Why the chat template cannot be used, if so. A hostile one is compiled, but not run."""
    from runtime.text import ChatTemplate

    try:
        ChatTemplate(target.chat_template() or "", {}, advice="generate --chat will be refused")
    except UsageError as error:
        return [f"note: {error}"]
    except MissingDependencyError:  # nor can a chat be run here
        pass
    return []


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "not set" if value is None else str(value)


def draft_figures(draft: Checkpoint) -> DraftFigures | None:
    """What the draft's maker measured ("measured" in its config.json), or None."""
    path: Path = draft.path / "config.json"
    try:
        measured = json.loads(path.read_text(encoding="utf-8"))["measured"]
        ranks = tuple(float(share) for share in measured["rank_shares"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None
    return DraftFigures(ranks) if ranks and all(0 <= share <= 1 for share in ranks) else None
