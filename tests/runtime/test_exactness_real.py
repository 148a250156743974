"""Losslessness on the default pair with its real weights.

Plain decoding runs the prompts eight at a time, speculation one at a time: a row's tokens must
depend neither on the mode nor on its batch mates.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engines.bundle import Bundle
from export.build.build import build
from export.build.options import BuildOptions
from export.fetch import fetch
from runtime.cli.prompts import many_prompts
from runtime.device.cores import available_cores
from runtime.grammar import Grammar
from runtime.llm import LLM, Completion
from runtime.loader import LoadedPair
from runtime.placement import place
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.spec.drafter import Drafter
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


def decode(
    bundle: Bundle, mode: str, batch: int, temperature: float, drafter: Drafter = Drafter.MODEL
) -> list[list[int]]:
    """Each prompt's tokens, decoded ``batch`` prompts at a time."""
    placement = place(mode, available_cores(), None, has_draft=True)
    assert placement.mode == mode, "these tests need two cores"
    counts = {"num_draft": 4, "num_branches": 16}
    pair = LoadedPair(bundle, placement, verify="coupled", drafter=drafter, **counts)
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
    assert mode == "ar" or emitted / rounds > (1.02 if drafter is Drafter.LOOKUP else 1.1)
    return [request.generated for request in requests]


plain: Callable[[str, float], list[list[int]]] = cache(
    lambda precision, temperature: decode(real_bundle(precision), "ar", BATCH, temperature)
)


@pytest.mark.parametrize(
    ("mode", "drafter"),
    [("ar", "model"), ("sd", "model"), ("ssd", "model"), ("sd", "both"), ("ssd", "both")],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_every_mode_gives_plain_decodings_tokens(precision, temperature, mode, drafter):
    expected = plain(precision, temperature)
    assert decode(real_bundle(precision), mode, 1, temperature, Drafter(drafter)) == expected
    assert sum(map(len, expected)) > 24 * 32


def test_lookups_alone_give_plain_decodings_tokens():
    assert decode(real_bundle("int8"), "sd", 1, 0.0, Drafter.LOOKUP) == plain("int8", 0.0)


def test_temperature_and_seed_change_the_text():
    assert plain("int8", 0.0) != plain("int8", 0.8)


def test_a_prompt_gets_a_sensible_answer():
    with LLM.open(real_bundle("int8").path, mode="ssd") as llm:
        answer = llm.generate(llm.encode("What is the capital of France?", chat=True))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "hobbies": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
    },
    "required": ["name", "age", "hobbies"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_schema_is_kept_with_the_same_tokens_in_every_mode(temperature):
    """K10, with a vocabulary whose tokens run across the grammar's parts."""
    check_schema(real_bundle("int8").path, temperature)


def check_schema(path: Path, temperature: float) -> None:
    found = []
    for mode, drafter in (("ar", "auto"), ("sd", "both"), ("ssd", "model"), ("ssd", "both")):
        with LLM.open(path, mode=mode, drafter=drafter) as llm:
            ids = llm.encode("Invent two persons and describe one as JSON.", chat=True)
            answers = llm.choices(
                ids,
                SamplingParams(temperature=temperature, seed=11, frequency_penalty=0.2),
                n=1 if temperature == 0 else 3,
                max_tokens=120,
                grammar=Grammar.json_schema(PERSON),
            )
            assert mode == "ar" or any(each.stats.acceptance_length > 1 for each in answers)
            found.append([(each.token_ids, each.text, each.finish_reason) for each in answers])
    assert found == [found[0]] * len(found)
    for _, text, finish_reason in found[0]:
        assert finish_reason == "stop"
        value = json.loads(text)
        assert set(value) == set(PERSON["required"])
        assert 0 <= value["age"] <= 120
        assert len(value["name"]) <= 20
        assert len(value["hobbies"]) <= 3


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_conversation_is_the_same_where_its_turns_go_on_behind_cached_rows(temperature):
    """Rows of answers were written by rounds, a few tokens each; a fresh prompt's by chunks."""
    check_conversation(real_bundle("int8").path, temperature)


def check_conversation(path: Path, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3)
    fresh = conversation(path, "ar", params, prefix_reuse=False)
    for mode, drafter in (("ar", "auto"), ("sd", "lookup"), ("ssd", "both")):
        found = conversation(path, mode, params, drafter=drafter)
        assert [each.token_ids for each in found] == [each.token_ids for each in fresh]
        assert [each.logprobs for each in found] == [each.logprobs for each in fresh]
        assert all(each.stats.num_cached >= each.prompt_tokens // 2 for each in found[1:])
    assert not any(each.stats.num_cached for each in fresh)


def conversation(path: Path, mode: str, params: SamplingParams, **options: Any) -> list[Completion]:
    answers, messages = [], []
    with LLM.open(path, mode=mode, max_batch=1, **options) as llm:
        for question in ("Why is the sky blue?", "And red in the evening?", "What about Mars?"):
            messages.append({"role": "user", "content": question})
            answers.append(llm.chat(messages, params, max_tokens=24, logprobs=1))
            messages.append({"role": "assistant", "content": answers[-1].text})
    return answers
