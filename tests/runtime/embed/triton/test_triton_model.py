"""A written repository, loaded as the server loads it and asked as clients ask."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from runtime.llm import LLM
from tests.helpers.fake_triton import FakeModel, TritonModelError
from tests.runtime.embed.triton.served import LAWS, PROMPT, repository, said_by, told, told_by


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("stream", [False, True])
def test_tokens_and_text_are_those_of_generate(model, alone, law, stream) -> None:
    call = model.ask(input_ids=PROMPT, max_tokens=40, stream=stream, **law)
    assert told(call) == told_by(said_by(alone, law, max_tokens=40))
    assert (len(call.responses) > 2) is stream
    assert sum(each["num_output_tokens"] for each in call.responses) == len(call.token_ids)


def test_text_goes_in_and_a_stop_string_takes_effect(model: FakeModel, alone: LLM) -> None:
    whole = alone.generate("abc", max_tokens=40).text
    stop = whole[9:12]
    for stream in (False, True):
        call = model.ask(text_input="abc", max_tokens=40, stop_words=[stop], stream=stream)
        assert call.text == alone.generate("abc", max_tokens=40, stop=stop).text
        assert (call.last["finish_reason"], call.last["stop_reason"]) == ("stop", stop)


def test_a_chat_goes_through_the_bundles_template(model: FakeModel, alone: LLM) -> None:
    said = alone.chat([{"role": "user", "content": "hi"}], max_tokens=12)
    assert told(model.ask(text_input="hi", chat=True, max_tokens=12)) == told_by(said)
    messages = '[{"role": "user", "content": "hi"}]'
    assert told(model.ask(messages=messages, max_tokens=12)) == told_by(said)


def test_pieces_are_never_empty_and_the_end_stands_in_the_last_alone(model: FakeModel) -> None:
    call = model.ask(input_ids=PROMPT, max_tokens=40, stream=True, temperature=1.0, seed=3)
    assert call.last
    assert all(each["text_output"] for each in call.responses[:-1])
    ends = {"finish_reason", "num_input_tokens", "acceptance_length", "mode", "num_cached_tokens"}
    assert ends <= set(call.last)
    assert not any(ends & set(each) for each in call.responses[:-1])


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_the_librarys(model: FakeModel, alone: LLM, stream: bool) -> None:
    law = LAWS[1]
    done = said_by(alone, law, max_tokens=20, logprobs=0)
    assert done.logprobs is not None
    expected = [each.logprob for each in done.logprobs]
    call = model.ask(input_ids=PROMPT, max_tokens=20, return_log_probs=True, stream=stream, **law)
    assert call.last["cum_log_probs"] == pytest.approx(sum(expected), rel=1e-6)
    found = [one for each in call.responses for one in each.get("output_log_probs", ())]
    assert found == np.array(expected, np.float32).tolist()


def test_outputs_that_nobody_asked_for_are_left_away(model: FakeModel) -> None:
    """``cum_log_probs`` without being asked for would be an error in a client's arithmetic."""
    assert "cum_log_probs" not in model.ask(input_ids=PROMPT, max_tokens=3).last
    call = model.ask(wanted=["text_output"], input_ids=PROMPT, max_tokens=3)
    assert set(call.last) == {"text_output"}


def test_requests_at_once_get_what_each_gets_alone(model: FakeModel, alone: LLM) -> None:
    """Five come in one call of the server's, of which two have to wait."""
    laws = [{**LAWS[i % 3], "seed": i} for i in range(5)]
    asked = [
        ({"input_ids": PROMPT, "max_tokens": 12 + 5 * i, "stream": i % 2 == 0, **law}, {})
        for i, law in enumerate(laws)
    ]
    calls = model.ask_all(asked)
    for i, (call, law) in enumerate(zip(calls, laws, strict=True)):
        assert told(call) == told_by(said_by(alone, law, max_tokens=12 + 5 * i))


def test_one_thread_answers_and_it_is_not_the_servers(model: FakeModel) -> None:
    """Which would otherwise wait in ``execute``, and a sender in two threads has no order."""
    calls = [model.ask(input_ids=PROMPT, max_tokens=20, stream=True) for _ in range(2)]
    refused = model.ask(input_ids=PROMPT, temperature=-1.0)
    threads = set()
    for call in (*calls, refused):
        call.wait()
        threads |= call.threads
    assert len(threads) == 1
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"text_input": ""}, "empty"),
        ({"input_ids": [5, 100_000]}, "the prompt has token id 100000"),
        ({"input_ids": [5] * 200}, "the prompt has 200 tokens"),
        ({"input_ids": PROMPT, "max_tokens": 0}, "max-tokens is 0"),
        ({"input_ids": PROMPT, "temperature": -1.0}, "temperature is -1.0"),
        ({"messages": '[{"role": "user"}]'}, "message 0 has content None"),
        (
            {
                "input_ids": PROMPT,
                "guided_decoding_guide_type": "regex",
                "guided_decoding_guide": "(",
            },
            "regular expression",
        ),
    ],
)
def test_a_bad_request_is_told_why_and_disturbs_no_other(model, alone, inputs, told) -> None:
    before = model.ask(input_ids=PROMPT, max_tokens=30, stream=True)
    calls = model.ask_all([(inputs, {}), ({"input_ids": PROMPT, "max_tokens": 9}, {})])
    code, message = calls[0].refusal
    assert code == "INVALID_ARG"
    assert told in message
    assert calls[0].responses == []
    assert calls[1].token_ids == said_by(alone, {}, max_tokens=9).token_ids
    assert before.token_ids == said_by(alone, {}, max_tokens=30).token_ids


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_transaction_policy": {}}, "no model_transaction_policy { decoupled: true }"),
        ({"instance_group": [{"kind": "KIND_GPU"}]}, "an instance for each GPU; say KIND_MODEL"),
        ({"parameters": {"mdoe": {"string_value": "ar"}}}, "parameter 'mdoe', expected branches"),
        ({"parameters": {"mode": {"string_value": "as"}}}, "unknown mode 'as'"),
        ({"parameters": {"bundle": {"string_value": "gone"}}}, "no bundle at"),
        ({"parameters": {"max_batch": {"string_value": "9"}}}, "built for 3"),
    ],
)
def test_a_configuration_that_cannot_be_is_told_in_one_line(tmp_path, changes, told) -> None:
    folder = repository(tmp_path)
    before = threading.active_count()
    with pytest.raises(TritonModelError) as refused:
        FakeModel(folder, **changes)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert threading.active_count() == before


def test_a_server_whose_python_lacks_ssd_trt_says_so(tmp_path, monkeypatch) -> None:
    folder = repository(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "runtime.embed.triton.model", None)
    with pytest.raises(TritonModelError, match="does not find ssd-trt"):
        FakeModel(folder)
