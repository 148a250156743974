"""The tokenizer of a GGUF file that was made from a SentencePiece model ("llama").

Such a file has a score for every piece and no merge rules. llama.cpp joins, again and again, the
two neighbours whose union scores highest; BPE does the same when every way to split a piece in two
is a rule, and the rules stand in the order of the pieces' scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.errors import CheckpointError
from export.checkpoint.fields import Fields

SPACE = "\u2581"
NORMAL = 1
"""The type of a piece that merges may make; others are control, byte or user-defined tokens."""


def spm_tokenizer(
    fields: Fields, tokens: Sequence[str], kinds: Sequence[object], unknown: int | None
) -> Any:
    """A ``tokenizers.Tokenizer`` without its added tokens. Raises CheckpointError."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _scores(fields, len(tokens))
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointError(f"{fields.where}: tokenizer.ggml.tokens holds a token twice")
    normal = [index for index, kind in enumerate(kinds) if kind == NORMAL]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges_by_score(vocab, tokens, scores, normal),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    to_pieces, to_text = normalizers.Replace(" ", SPACE), decoders.Replace(SPACE, " ")
    steps = [to_text, decoders.ByteFallback(), decoders.Fuse()]
    if fields.flag("tokenizer.ggml.add_space_prefix", True):
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), to_pieces])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        tokenizer.normalizer = to_pieces
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def merges_by_score(
    vocab: dict[str, int], tokens: Sequence[str], scores: Sequence[float], normal: Sequence[int]
) -> list[tuple[str, str]]:
    """Both halves of every split of every normal piece into two tokens, best piece first.

    Of one piece that with the longest first half comes first. It makes no difference to a text, but
    it is the order in tokenizers that transformers converted, and pairs are compared by it.
    """
    rules = [
        (scores[index], tokens[index][:cut], tokens[index][cut:])
        for index in normal
        for cut in range(1, len(tokens[index]))
        if tokens[index][:cut] in vocab and tokens[index][cut:] in vocab
    ]
    rules.sort(key=lambda rule: (-rule[0], -len(rule[1]), -len(rule[2])))
    return [(left, right) for _, left, right in rules]


def _scores(fields: Fields, num_tokens: int) -> list[float]:
    scores = fields.get("tokenizer.ggml.scores")
    if (
        not isinstance(scores, list)
        or len(scores) != num_tokens
        or not all(isinstance(score, (int, float)) for score in scores)
    ):
        raise CheckpointError(
            f"{fields.where}: tokenizer.ggml.scores must list the scores of {num_tokens} tokens"
        )
    return scores
