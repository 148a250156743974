"""The chat template of a target, split around the user's question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.errors import CheckpointError, MissingDependencyError
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
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingDependencyError("tokenizers", "export", "writing training text") from error
    try:
        tokenizer = Tokenizer.from_str(text.decode("utf-8"))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(
            f"{checkpoint.path}: tokenizer.json cannot be used: {' '.join(str(error).split())}"
        ) from error
    before, after = _around_question(checkpoint)
    return Frame(
        before,
        after,
        encode=lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
        decode=lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)),
        end_ids=checkpoint.spec.eos_token_ids,
    )


def _around_question(checkpoint: Checkpoint) -> tuple[str, str]:
    template = checkpoint.chat_template()
    if template is None:
        return "", ""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise MissingDependencyError("jinja2", "cpu", "the target's chat template") from error
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    try:
        text = environment.from_string(template).render(
            messages=[{"role": "user", "content": MARK}],
            add_generation_prompt=True,
            **checkpoint.special_tokens(),
        )
    except TemplateError as error:
        raise CheckpointError(
            f"{checkpoint.path}: the chat template cannot be rendered: "
            f"{' '.join(str(error).split())}"
        ) from error
    before, mark, after = text.partition(MARK)
    if not mark or MARK in after:
        raise CheckpointError(
            f"{checkpoint.path}: the chat template does not show the user's message exactly once; "
            "give text that the target wrote with --data"
        )
    return before, after
