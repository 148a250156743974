"""What a tiny model is made of: random weights and a byte-level tokenizer."""

from __future__ import annotations

import numpy as np

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
BOS_ID, EOS_ID = 1, 2
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' "
    "+ message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_COMMON_FIRST = "etaoinshrdlucmfwypvbgkjqxz"


def random_weights(
    family: str,
    vocab: int,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int | None,
    intermediate: int,
    tied: bool,
    seed: int,
) -> dict[str, np.ndarray]:
    """Float32 weights under their Hugging Face names, sized so that logits differ clearly."""
    rng = np.random.default_rng(seed)
    dim = head_dim or hidden // heads

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0.0, 1.5 / np.sqrt(columns), size=(rows, columns)).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return rng.uniform(0.7, 1.3, size=size).astype(np.float32)

    weights = {"model.embed_tokens.weight": rng.normal(size=(vocab, hidden)).astype(np.float32)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        weights[at + "input_layernorm.weight"] = norm(hidden)
        weights[at + "self_attn.q_proj.weight"] = matrix(heads * dim, hidden)
        weights[at + "self_attn.k_proj.weight"] = matrix(kv_heads * dim, hidden)
        weights[at + "self_attn.v_proj.weight"] = matrix(kv_heads * dim, hidden)
        weights[at + "self_attn.o_proj.weight"] = matrix(hidden, heads * dim)
        if family == "qwen3":
            weights[at + "self_attn.q_norm.weight"] = norm(dim)
            weights[at + "self_attn.k_norm.weight"] = norm(dim)
        weights[at + "post_attention_layernorm.weight"] = norm(hidden)
        weights[at + "mlp.gate_proj.weight"] = matrix(intermediate, hidden)
        weights[at + "mlp.up_proj.weight"] = matrix(intermediate, hidden)
        weights[at + "mlp.down_proj.weight"] = matrix(hidden, intermediate)
    weights["model.norm.weight"] = norm(hidden)
    if not tied:
        weights["lm_head.weight"] = matrix(vocab, hidden)
    return weights


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Round float32 to the nearest bfloat16 (ties to even), as raw uint16."""
    bits = array.astype(np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16)


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte 0..255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in table)
    table.update({byte: chr(256 + index) for index, byte in enumerate(others)})
    return [table[byte] for byte in range(256)]


def bpe_pieces(vocab: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens (special, bytes, then one per merge) and merges that fill ``vocab`` ids.

    Beyond 961 ids the merges run out and the tail of the vocabulary has no token, as in
    checkpoints whose embedding is padded.
    """
    if vocab < 300:
        raise ValueError(f"a byte-level tokenizer needs at least 300 ids, asked for {vocab}")
    pairs = [("Ġ", letter) for letter in _COMMON_FIRST]
    pairs += [(a, b) for a in _COMMON_FIRST for b in _COMMON_FIRST]
    merges = pairs[: vocab - 256 - len(SPECIAL_TOKENS)]
    tokens = [*SPECIAL_TOKENS, *byte_alphabet(), *(left + right for left, right in merges)]
    return tokens, merges


def byte_level_tokenizer(vocab: int) -> bytes:
    """tokenizer.json of a small byte-level BPE with ``vocab`` ids."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, merges = bpe_pieces(vocab)
    model = models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer.to_str(pretty=True).encode()
