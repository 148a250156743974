"""The chat template of a target, split around the user's question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.errors import BundleCorruptError, CheckpointError, UsageError
from export.checkpoint.api import Checkpoint

MARK = "QUESTION-GOES-HERE"


@dataclass(frozen=True, slots=True)
class Frame:
    """The text around a question, and the tokenizer that turns text into ids.

    ``encode`` adds no special tokens of its own, ``decode`` leaves them out.
    """

    before: str
    after: str
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    end_ids: tuple[int, ...]


def frame_of(checkpoint: Checkpoint) -> Frame:
    """The frame of a checkpoint; empty texts where it has no chat template.

    Raises CheckpointError where the tokenizer is missing or the template cannot be used.
    """
    text = checkpoint.tokenizer_json()
    if text is None:
        raise CheckpointError(
            f"{checkpoint.path}: no tokenizer, so the target cannot write its own training text; "
            "give text that it wrote with --data"
        )
    from runtime.text import Tokenizer

    try:
        tokenizer = Tokenizer(text)
        before, after = _around_question(checkpoint)
    except (BundleCorruptError, UsageError) as error:
        raise CheckpointError(f"{checkpoint.path}: {error}") from None
    return Frame(
        before, after, tokenizer.encode, tokenizer.decode, end_ids=checkpoint.spec.eos_token_ids
    )


def _around_question(checkpoint: Checkpoint) -> tuple[str, str]:
    from runtime.text import ChatTemplate

    source = checkpoint.chat_template()
    if source is None:
        return "", ""
    template = ChatTemplate(
        source, checkpoint.special_tokens(), advice="give text that the target wrote with --data"
    )
    text = template.render([{"role": "user", "content": MARK}])
    before, mark, after = text.partition(MARK)
    if not mark or MARK in after:
        raise CheckpointError(
            f"{checkpoint.path}: the chat template does not show the user's message exactly once; "
            "give text that the target wrote with --data"
        )
    return before, after
