"""Whole answers of the default pair with its real weights: sense, schemas, conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.grammar import Grammar
from runtime.llm import LLM, Completion
from runtime.sampling.params import SamplingParams
from tests.helpers.real_pair import real_bundle

pytestmark = [pytest.mark.real, pytest.mark.timeout(1500)]


def test_a_prompt_gets_a_sensible_answer():
    with LLM.open(real_bundle("int8").path, mode="ssd") as llm:
        ids = llm.encode("What is the capital of France?", chat=True)
        answer = llm.generate(ids)
        others = [llm.generate(ids, SamplingParams(1.0, seed=seed)).token_ids for seed in (1, 2)]
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"
    assert len({answer.token_ids, *others}) == 3, "temperature and seed change the text"


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
