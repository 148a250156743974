"""Requests of the server -> what an LLM is asked."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from engines.errors import UsageError
from runtime.embed.triton.asked import Asked, read_request
from runtime.embed.triton.tensors import BY_NAME
from runtime.grammar import Grammar
from runtime.sampling.params import SamplingParams
from tests.helpers.fake_triton import NUMPY, Call, FakeRequest, FakeTensor


def asked(parameters: dict[str, Any] | None = None, **inputs: Any) -> Asked:
    tensors = []
    for name, value in inputs.items():
        kind = NUMPY[BY_NAME[name].data_type] if name in BY_NAME else np.int32
        array = value if isinstance(value, np.ndarray) else np.array(value, kind).reshape(-1)
        tensors.append(FakeTensor(name, array))
    request = FakeRequest(Call({}, None), tensors, parameters or {})
    found = read_request(request)
    request.release()
    return found


def test_a_prompt_alone_is_the_librarys_own_generate() -> None:
    found = asked(text_input="The rain ☔")
    assert (found.prompt, found.is_chat, found.streams) == ("The rain ☔", False, False)
    assert found.options == {}
    assert found.params == SamplingParams(seed=found.params.seed)


def test_without_a_seed_each_request_gets_its_own() -> None:
    assert asked(text_input="a").params.seed != asked(text_input="a").params.seed


def test_everything_that_can_be_asked_arrives() -> None:
    found = asked(
        text_input="a",
        max_tokens=7,
        min_tokens=2,
        temperature=0.8,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        seed=2**64 - 1,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=-0.4,
        stop_words=["x", "y"],
        bad_words=["z"],
        stop_token_ids=[3, 4],
        ignore_eos=True,
        return_log_probs=True,
        cache_salt="me",
        stream=True,
        exclude_input_in_output=True,
        pad_id=0,
    )
    assert found.params == SamplingParams(
        0.8, 5, 0.9, 2**64 - 1, 0.1, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=-0.4,
    )  # fmt: skip
    assert found.options == {
        "max_tokens": 7, "min_tokens": 2, "stop": ["x", "y"], "bad_words": ["z"],
        "stop_token_ids": [3, 4], "ignore_eos": True, "logprobs": 0, "cache_salt": "me",
    }  # fmt: skip
    assert found.streams


def test_values_are_copies() -> None:
    """The server uses a tensor's memory again while the text is being written."""
    found = asked(messages='[{"role": "user", "content": "hi"}]', stop_token_ids=[5])
    assert found.prompt == [{"role": "user", "content": "hi"}]
    assert found.options["stop_token_ids"] == [5]
    ids = asked(input_ids=[7, 8, 9])
    assert ids.prompt == [7, 8, 9]
    assert all(type(each) is int for each in ids.prompt)


@pytest.mark.parametrize("number", [0.8, 0.1, 1 / 3, 1e-7, 0.0, 2.0])
def test_a_number_is_the_one_that_the_client_wrote(number: float) -> None:
    """Rounded to single precision and back, 0.8 would be 0.800000011920929: another law."""
    written = float(np.float32(number).astype(str))
    assert asked(text_input="a", temperature=written).params.temperature == written


@pytest.mark.parametrize(
    ("alias", "value", "name", "meant"),
    [
        ("min_length", 3, "min_tokens", 3),
        ("random_seed", 9, "seed", 9),
        ("stop", ["x"], "stop_words", ["x"]),
        ("end_id", 2, "stop_token_ids", [2]),
    ],
)
def test_an_alias_means_the_same_and_does_not_go_with_it(alias, value, name, meant) -> None:
    first, second = asked(text_input="a", **{alias: value}), asked(text_input="a", **{name: meant})
    assert first.options == second.options
    if alias == "random_seed":
        assert first.params.seed == second.params.seed == 9
    with pytest.raises(UsageError, match=f"{alias} and {name} say the same"):
        asked(text_input="a", **{alias: value, name: meant})


def test_what_other_backends_clients_send_for_nothing_is_nothing() -> None:
    found = asked(text_input="a", bad_words=[""], stop_words=["", "x"], cache_salt="", top_k=-1)
    assert found.options == {"bad_words": [], "stop": ["x"]}
    assert found.params.top_k == 0


def test_parameters_of_the_request_and_vllms_json_say_the_same_as_tensors() -> None:
    """vLLM's client writes numbers as text; what is the server's own is left to it."""
    said = {"temperature": "0.5", "top_p": 0.9, "max_tokens": "5", "seed": 3, "stop": "x"}
    said |= {"ignore_eos": "true", "top_k": 2.0}
    expected = asked(
        text_input="a",
        temperature=0.5,
        top_p=0.9,
        max_tokens=5,
        seed=3,
        stop=["x"],
        ignore_eos=True,
        top_k=2,
    )
    assert asked({**said, "triton_enable_empty_final_response": True}, text_input="a") == expected
    assert asked(text_input="a", sampling_parameters=json.dumps(said)) == expected
    with pytest.raises(UsageError, match="max_tokens and max_tokens say the same"):
        asked({"max_tokens": 5}, text_input="a", max_tokens=5)


@pytest.mark.parametrize(
    ("kind", "guide", "grammar"),
    [
        ("json", None, Grammar.json_object()),
        ("json_schema", '{"type": "integer"}', Grammar.json_schema({"type": "integer"})),
        ("regex", "[a-z]+", Grammar.regex("[a-z]+")),
        ("lark", 'start: "a"', Grammar.lark('start: "a"')),
        ("choice", '["yes", "no"]', Grammar.choice(["yes", "no"])),
        ("", "", None),
    ],
)
def test_a_form_of_the_answer(kind: str, guide: str | None, grammar: Grammar | None) -> None:
    inputs = {} if guide is None else {"guided_decoding_guide": guide}
    found = asked(text_input="a", guided_decoding_guide_type=kind, **inputs)
    assert found.options.get("grammar") == grammar


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({}, "no prompt; give one of text_input, messages and input_ids"),
        ({"text_input": "a", "input_ids": [1]}, "text_input and input_ids; give one"),
        ({"input_ids": [1], "chat": True}, "chat goes with text_input"),
        ({"messages": "[{"}, "messages is not JSON"),
        ({"messages": '{"role": "user"}'}, "messages is a JSON dict, expected a list"),
        ({"text_input": np.array([b"\xff"], np.object_)}, "text_input is not UTF-8"),
        ({"text_input": ["a", "b"]}, "text_input has 2 values, expected one"),
        ({"text_input": "a", "temperature": -1.0}, "temperature is -1.0"),
        ({"text_input": "a", "temperature": float("nan")}, "temperature is nan"),
        ({"text_input": "a", "top_k": -2}, "top_k is -2"),
        ({"text_input": "a", "exclude_input_in_output": False}, "the new text alone"),
        ({"text_input": "a", "beam_width": 2}, "'beam_width' is not served; known are text_input"),
        ({"text_input": "a", "sampling_parameters": "[1]"}, "JSON list, expected an object"),
        ({"text_input": "a", "sampling_parameters": "{"}, "sampling_parameters is not JSON"),
        (
            {"text_input": "a", "sampling_parameters": '{"sampling_parameters": "{}"}'},
            "must be an input of its own",
        ),
        ({"text_input": "a", "sampling_parameters": '{"n": 2}'}, "'n' is not served"),
        ({"text_input": "a", "sampling_parameters": '{"top_k": 1.5}'}, "top_k is 1.5, expected"),
        ({"text_input": "a", "sampling_parameters": '{"top_k": true}'}, "top_k is True"),
        ({"text_input": "a", "sampling_parameters": '{"top_k": 1e999}'}, "top_k is inf"),
        ({"text_input": "a", "sampling_parameters": '{"stream": 1}'}, "stream is 1, expected"),
        ({"text_input": "a", "sampling_parameters": '{"stop": [1]}'}, "stop is 1, expected"),
        ({"text_input": "a", "sampling_parameters": '{"seed": null}'}, "seed is None"),
        ({"text_input": "a", "guided_decoding_guide": "x"}, "guide_type is None"),
        (
            {
                "text_input": "a",
                "guided_decoding_guide_type": "regex",
                "guided_decoding_guide": "a" * 65_537,
            },
            "65537 characters; at most 65536",
        ),
        ({"text_input": "a", "sampling_parameters": f'{{"top_k": "{"x" * 9000}"}}'}, "xxx...xxx"),
        ({"text_input": "a", "guided_decoding_guide_type": "ebnf"}, "guide_type is 'ebnf'"),
        ({"text_input": "a", "guided_decoding_guide_type": "regex"}, "guide_type is 'regex'"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(inputs: dict, told: str) -> None:
    with pytest.raises(UsageError) as refused:
        asked(**inputs)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_an_unknown_parameter_of_the_request_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'max_token' is not served"):
        asked({"max_token": 5}, text_input="a")
