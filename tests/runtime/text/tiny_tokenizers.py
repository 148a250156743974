"""Tokenizers small enough to read, as bytes of a tokenizer.json; and none at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ("<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "©evil", "日本")
"""``©evil`` is spelled in the byte alphabet: the library takes it for bytes that are no UTF-8."""
TEXT = ("the cat sat on the mat", "naïve 😀😁👩‍👩‍👧 日本語", "Ω≈ç√ \ufffd end")


@cache
def byte_level_bpe() -> bytes:
    """A trained byte-level BPE (SmolLM2's, Llama 3's and Qwen3's kind): emoji split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer.to_str().encode()


@cache
def byte_fallback_bpe() -> bytes:
    """A SentencePiece-like BPE: word-start marks, unknown characters as byte tokens."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += [*"▁abch!", "▁h", "\ufffd"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[("▁", "h")],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer.to_str().encode()


class Words:
    """A source whose token i is the i-th word; nothing is ever unsettled."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = words

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(self.words[i] for i in ids)

    def peek(self) -> str:
        return ""

    def flush(self) -> str:
        return ""
