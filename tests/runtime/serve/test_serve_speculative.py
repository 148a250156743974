"""--speculative-config: the shape that vLLM made common, and nothing silently left out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engines.errors import UsageError
from runtime.serve.speculative import read_speculative_config


@pytest.mark.parametrize(
    ("text", "wishes"),
    [
        ("{}", {}),
        ('{"method": null, "num_speculative_tokens": null}', {}),
        ('{"method": "ssd", "num_speculative_tokens": 4}', {"mode": "ssd", "num_draft": 4}),
        ('{"method": "draft_model"}', {"mode": "sd", "drafter": "model"}),
        ('{"method": "ngram", "num_speculative_tokens": 2}',
         {"mode": "sd", "drafter": "lookup", "num_draft": 2}),
        ('{"num_branches": 8, "fallback": "jit", "drafter": "both"}',
         {"branches": 8, "fallback": "jit", "drafter": "both"}),
        ('{"rejection_sample_method": "probabilistic"}', {"verify": "ratio"}),
        ('{"rejection_sample_method": "strict", "draft_tensor_parallel_size": 1}',
         {"verify": "coupled"}),
    ],
)  # fmt: skip
def test_what_it_says_is_what_the_model_is_opened_with(text: str, wishes: dict[str, Any]) -> None:
    assert read_speculative_config(text) == wishes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ('"ssd"', "object"),
        ("[" * 100_000, "JSON"),
        ('{"methods": "ssd"}', "methods"),
        ('{"method": "eagle3"}', "eagle3"),
        ('{"method": 1}', "method"),
        ('{"num_speculative_tokens": 0}', "num_speculative_tokens"),
        ('{"num_speculative_tokens": true}', "num_speculative_tokens"),
        ('{"num_speculative_tokens": "3"}', "num_speculative_tokens"),
        ('{"prompt_lookup_max": 4}', "prompt_lookup_max"),
        ('{"model": "other"}', "model"),
        ('{"tensor_parallel_size": 2}', "tensor_parallel_size"),
        ('{"draft_tensor_parallel_size": 2}', "draft_tensor_parallel_size"),
        ('{"rejection_sample_method": "synthetic"}', "synthetic"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_speculative_config(text)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert isinstance(read_speculative_config(text), dict)
