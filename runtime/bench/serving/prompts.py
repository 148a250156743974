"""What is asked: a data set's prompts, or texts of random words."""

from __future__ import annotations

import random
from pathlib import Path

from runtime.bench.dataset.items import read_items

_WORDS = """
river mountain quiet window history people system garden number question light water stone
morning market letter story island winter engine colour paper bridge music forest answer
children reason village summer science travel measure simple border silver memory language
"""
WORDS = _WORDS.split()
"""Frequent ones, most of which are one token in most vocabularies."""


def prompts_of(dataset: Path | None, num_prompts: int, num_words: int, seed: int) -> list[str]:
    """``num_prompts`` texts: a data set's first ones, again from the start where it has fewer; else
    of ``num_words`` random words each, the same ones for a seed. Raises UsageError."""
    if dataset is not None:
        texts = [item.text for item in read_items(dataset)]
        return [texts[index % len(texts)] for index in range(num_prompts)]
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=num_words)) for _ in range(num_prompts)]
