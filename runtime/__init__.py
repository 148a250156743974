"""Runs bundles: `from runtime import LLM, SamplingParams`, or `python -m runtime`.

The names are imported when they are first asked for: the command line starts without them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.async_llm import AsyncLLM
    from runtime.completion import Completion
    from runtime.grammar import Grammar
    from runtime.llm import LLM
    from runtime.sampling.params import SamplingParams

__all__ = ["LLM", "AsyncLLM", "Completion", "Grammar", "SamplingParams"]

_HOMES = {
    "LLM": "runtime.llm",
    "AsyncLLM": "runtime.async_llm",
    "Completion": "runtime.completion",
    "Grammar": "runtime.grammar",
    "SamplingParams": "runtime.sampling.params",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'runtime' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
