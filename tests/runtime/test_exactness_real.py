"""Losslessness on the default pair with its real weights.

Plain decoding runs the prompts eight at a time, speculation one at a time: a row's tokens must
depend neither on the mode nor on its batch mates.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from engines.bundle import Bundle
from export.build.build import build
from export.build.options import BuildOptions
from export.fetch import fetch
from runtime.cli.prompts import many_prompts
from runtime.device.cores import available_cores
from runtime.llm import LLM
from runtime.loader import LoadedPair
from runtime.placement import place
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from tests.helpers.session_folder import session_folder

MAX_TOKENS, BATCH = 64, 8

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]


@cache
def real_bundle(precision: str) -> Bundle:
    """The default pair, built once a test session (the fetched weights are kept between runs)."""
    fetch("smollm2-135m")
    options = BuildOptions(
        target="smollm2-135m",
        draft="smollm2-135m-draft",
        out=session_folder("real-bundle") / precision,
        precision=precision,
        max_len=256,
        max_batch=BATCH,
    )
    return build(options).bundle


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    """24 prompts: the built-in dozen as chat and as plain text to go on with."""
    with LLM.open(real_bundle("int8").path, mode="ar") as llm:
        texts = many_prompts(None, None)
        return tuple(tuple(llm.encode(text, chat=chat)) for chat in (True, False) for text in texts)


def decode(bundle: Bundle, mode: str, batch: int, temperature: float) -> list[list[int]]:
    """Each prompt's tokens, decoded ``batch`` prompts at a time."""
    placement = place(mode, available_cores(), None, has_draft=True)
    assert placement.mode == mode, "these tests need two cores"
    pair = LoadedPair(bundle, placement, verify="coupled", num_draft=4, num_branches=16)
    stop_ids = frozenset(bundle.target.model.eos_token_ids)
    requests = [
        Request(
            prompt, SamplingParams(temperature=temperature, seed=seed), MAX_TOKENS, stop_ids, 256
        )
        for seed, prompt in enumerate(prompts())
    ]
    try:
        rounds = emitted = 0
        for start in range(0, len(requests), batch):
            stats = pair.scheduler.run(requests[start : start + batch])
            rounds, emitted = rounds + stats.num_rounds, emitted + stats.num_emitted
    finally:
        pair.close()
    # Guards against the easy way to be exact: no token of the draft ever accepted.
    assert mode == "ar" or emitted / rounds > 1.1
    return [request.generated for request in requests]


plain: Callable[[str, float], list[list[int]]] = cache(
    lambda precision, temperature: decode(real_bundle(precision), "ar", BATCH, temperature)
)


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_every_mode_gives_plain_decodings_tokens(precision, temperature, mode):
    expected = plain(precision, temperature)
    assert decode(real_bundle(precision), mode, 1, temperature) == expected
    assert sum(map(len, expected)) > 24 * 32


def test_temperature_and_seed_change_the_text():
    assert plain("int8", 0.0) != plain("int8", 0.8)


def test_a_prompt_gets_a_sensible_answer():
    with LLM.open(real_bundle("int8").path, mode="ssd") as llm:
        answer = llm.generate(llm.encode("What is the capital of France?", chat=True))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
