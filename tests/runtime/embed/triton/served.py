"""A written repository of the tiny pair, and what is asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.completion import Completion
from runtime.embed.triton.config import Parameters
from runtime.embed.triton.repository import write_repository
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.helpers.fake_triton import Call
from tests.helpers.tiny_bundle import tiny_bundle

PROMPT = [5, 9, 200, 17]
LONG: dict[str, Any] = {"input_ids": PROMPT, "max_tokens": 120, "ignore_eos": True}
LAWS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 2**64 - 1, "top_k": 40, "repetition_penalty": 1.2},
]


def repository(root: Path, name: str = "tiny", **parameters: Any) -> Path:
    return write_repository(
        root, name, tiny_bundle(max_batch=3), Parameters(**parameters), on_gpu=False
    ).folder


def said_by(llm: LLM, law: dict[str, Any], **options: Any) -> Completion:
    return llm.generate(PROMPT, SamplingParams(**law), **options)


def told(call: Call) -> tuple[Any, ...]:
    last = call.last
    return call.token_ids, call.text, last["finish_reason"], last["num_input_tokens"]


def told_by(done: Completion) -> tuple[Any, ...]:
    return done.token_ids, done.text, done.finish_reason, done.prompt_tokens
