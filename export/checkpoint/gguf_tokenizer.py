"""Rebuild tokenizer.json from the vocabulary and merges that a GGUF file carries.

Of byte-level BPE, GGUF names the text splitting rule only ("tokenizer.ggml.pre"); the rules
themselves are those of the models' own tokenizers. ``gguf_spm`` has SentencePiece's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engines.errors import CheckpointError, UnsupportedModelError
from export.checkpoint.fields import Fields
from export.checkpoint.gguf_spm import spm_tokenizer
from export.packages import require

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # values of tokenizer.ggml.token_type


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a tokenizer splits text before BPE."""

    pattern: str | None = None  # None: the rule of GPT-2, which the library has built in
    single_digits: bool = False  # with GPT-2's rule: every digit stands alone
    compose: bool = False  # Unicode NFC first
    whole_words: bool = False  # a piece that is a token needs no merges
    adds_bos: bool = False  # where the file does not say


def _word_pattern(digits: str) -> str:
    """The splitting expression that Llama 3 and Qwen2 share, but for the length of numbers."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
        r"|[^\r\n\p{L}\p{N}]?\p{L}+"
        rf"|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+"
        r"|\s+(?!\S)"
        r"|\s+"
    )


_RULES = {
    "default": _Rule(),
    "gpt-2": _Rule(),
    "smollm": _Rule(single_digits=True),
    "llama-bpe": _Rule(pattern=_word_pattern(r"\p{N}{1,3}"), whole_words=True, adds_bos=True),
    "qwen2": _Rule(pattern=_word_pattern(r"\p{N}"), compose=True),
}


def tokenizer_json(metadata: Mapping[str, object], where: str) -> bytes:
    """tokenizer.json for the tokenizer described by the metadata of a GGUF file.

    Control tokens become special tokens. A beginning-of-text token is put in front of a text only
    where the file says so or, if it says nothing, where that model's own tokenizer does (Llama 3).
    Raises UnsupportedModelError for a tokenizer of another kind, CheckpointError for a damaged one.
    """
    fields = Fields(metadata, where)
    purpose = "rebuilding the tokenizer of a GGUF file"
    require("tokenizers", "tokenizers", "export", purpose, ("Tokenizer", "models"))
    model = fields.text("tokenizer.ggml.model")
    tokens = _strings(fields, "tokenizer.ggml.tokens")
    kinds = _kinds(fields, len(tokens))
    if model == "gpt2":
        rule = _rule(fields)
        merges = [_pair(merge, where) for merge in _strings(fields, "tokenizer.ggml.merges")]
        tokenizer, adds_bos = _byte_level_bpe(tokens, merges, rule, where), rule.adds_bos
    elif model == "llama":
        unknown = fields.token_id("tokenizer.ggml.unknown_token_id", len(tokens))
        tokenizer, adds_bos = spm_tokenizer(fields, tokens, kinds, unknown), True
    else:
        raise UnsupportedModelError(
            f"{where}: tokenizer model {model!r} is not supported, only byte-level BPE ('gpt2') "
            "and SentencePiece ('llama') are; use the model's Hugging Face folder"
        )
    pairs = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens([_added(text, True) for text, kind in pairs if kind == _CONTROL])
    tokenizer.add_tokens([_added(text, False) for text, kind in pairs if kind == _USER_DEFINED])
    bos = fields.token_id("tokenizer.ggml.bos_token_id", len(tokens))
    if bos is not None and fields.flag("tokenizer.ggml.add_bos_token", adds_bos):
        from tokenizers import processors

        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens[bos], "$A"],
            pair=[tokens[bos], "$A", f"{tokens[bos]}:1", "$B:1"],
            special_tokens=[(tokens[bos], bos)],
        )
    document: str = tokenizer.to_str()
    return document.encode()


def _rule(fields: Fields) -> _Rule:
    pre = fields.text("tokenizer.ggml.pre", "default")
    rule = _RULES.get(pre)
    if rule is None:
        raise UnsupportedModelError(
            f"{fields.where}: text splitting rule {pre!r} is not supported, only "
            f"{', '.join(_RULES)} are; use the model's Hugging Face folder"
        )
    return rule


def _byte_level_bpe(
    tokens: list[str], merges: list[tuple[str, str]], rule: _Rule, where: str
) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CheckpointError(f"{where}: tokenizer.ggml.tokens holds a token twice")
    try:
        bpe = models.BPE(vocab=vocab, merges=merges, ignore_merges=rule.whole_words)
    except Exception as error:  # the library raises Exception itself
        raise CheckpointError(
            f"{where}: tokenizer.ggml.merges do not fit the tokens: {error}"
        ) from None
    tokenizer = Tokenizer(bpe)
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.pattern is None)
    steps: list[Any] = [to_bytes]
    if rule.single_digits:
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if rule.pattern is not None:
        steps.insert(0, pre_tokenizers.Split(Regex(rule.pattern), behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    if rule.compose:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _added(text: str, special: bool) -> Any:
    from tokenizers import AddedToken

    return AddedToken(text, special=special, normalized=False)


def _kinds(fields: Fields, num_tokens: int) -> list[object]:
    """The type of every token; a file without types has ordinary tokens only."""
    kinds = fields.get("tokenizer.ggml.token_type")
    if kinds is None:
        return [_NORMAL] * num_tokens
    if not isinstance(kinds, list) or len(kinds) != num_tokens:
        raise CheckpointError(
            f"{fields.where}: tokenizer.ggml.token_type must list {num_tokens} token types"
        )
    return kinds


def _strings(fields: Fields, name: str) -> list[str]:
    value = fields.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise CheckpointError(f"{fields.where}: {name} must be a list of strings")
    return value


def _pair(merge: str, where: str) -> tuple[str, str]:
    parts = merge.split(" ")
    if len(parts) != 2:
        raise CheckpointError(f"{where}: merge {merge!r} is not two tokens with a space between")
    return parts[0], parts[1]
