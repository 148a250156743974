"""config.pbtxt: what the schema makes of it, and what a model reads of that."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from google.protobuf import text_format

from engines.errors import UsageError
from runtime.embed.triton.config import Parameters, config_text, read_parameters
from runtime.embed.triton.tensors import BY_NAME, INPUTS, OUTPUTS
from tests.helpers.triton_config import model_config_schema, read_config

EVERYTHING = Parameters(
    bundle="elsewhere",
    mode="sd",
    verify="ratio",
    drafter="lookup",
    fallback="zero",
    num_draft=3,
    branches=5,
    max_batch=2,
    device="cuda:0,cpu",
    max_waiting=0,
    drain_timeout_s=7,
)


def parsed(parameters: Parameters = EVERYTHING, *, on_gpu: bool = False, environment=None):
    text = config_text("a.model-1", parameters, on_gpu=on_gpu, environment=environment)
    return text_format.Parse(text, model_config_schema()())


def test_the_schema_would_tell() -> None:
    """The descriptor refuses a field that is none, a type that is none, and a type's mistake."""
    text = config_text("a", Parameters(), on_gpu=False)
    for right, wrong in (
        ("max_batch_size: 0", "max_batch: 0"),
        ("TYPE_STRING", "TYPE_TEXT"),
        ("decoupled: true", 'decoupled: "true"'),
        ("KIND_CPU", "KIND_TPU"),
    ):
        assert right in text
        with pytest.raises(text_format.ParseError):
            text_format.Parse(text.replace(right, wrong), model_config_schema()())


def test_it_is_a_decoupled_python_model_whose_engine_batches() -> None:
    config = parsed()
    assert (config.name, config.backend, config.max_batch_size) == ("a.model-1", "python", 0)
    assert config.platform == ""
    assert config.model_transaction_policy.decoupled
    assert config.WhichOneof("scheduling_choice") is None, "the server would hold requests back"
    assert len(config.instance_group) == 1
    assert config.instance_group[0].count == 1


@pytest.mark.parametrize(("on_gpu", "kind"), [(False, "KIND_CPU"), (True, "KIND_MODEL")])
def test_gpus_are_chosen_by_the_model(on_gpu: bool, kind: str) -> None:
    group = parsed(on_gpu=on_gpu).instance_group[0]
    assert group.Kind.Name(group.kind) == kind
    assert not group.gpus


def test_clients_of_the_other_backends_find_their_names() -> None:
    """As tensorrtllm_backend's tensorrt_llm_bls and vllm_backend declare them; no batch dimension,
    as in the latter."""
    config = parsed()
    types = {each.name: each for each in config.input}
    for name, kind, dims in (
        *(("text_input", "STRING", 1), ("max_tokens", "INT32", 1), ("bad_words", "STRING", -1)),
        *(("stop_words", "STRING", -1), ("end_id", "INT32", 1), ("pad_id", "INT32", 1)),
        *(("top_k", "INT32", 1), ("top_p", "FP32", 1), ("temperature", "FP32", 1)),
        *(("repetition_penalty", "FP32", 1), ("min_length", "INT32", 1)),
        *(("presence_penalty", "FP32", 1), ("frequency_penalty", "FP32", 1)),
        *(("random_seed", "UINT64", 1), ("return_log_probs", "BOOL", 1), ("stream", "BOOL", 1)),
        *(("sampling_parameters", "STRING", 1), ("exclude_input_in_output", "BOOL", 1)),
    ):
        entry = types[name]
        found = model_config_schema().DESCRIPTOR.file.enum_types_by_name["DataType"]
        assert found.values_by_number[entry.data_type].name == f"TYPE_{kind}", name
        assert list(entry.dims) == [dims], name
        assert entry.optional, name
    outputs = {each.name: list(each.dims) for each in config.output}
    assert outputs["text_output"] == [1]
    assert {"finish_reason", "num_input_tokens", "num_output_tokens"} <= set(outputs)


def test_no_name_stands_twice_and_every_alias_leads_to_an_input() -> None:
    assert len(BY_NAME) == len(INPUTS)
    assert len({each.name for each in OUTPUTS}) == len(OUTPUTS)
    for each in INPUTS:
        assert each.means is None or BY_NAME[each.means].means is None


@pytest.mark.parametrize("parameters", [Parameters(), EVERYTHING])
def test_what_is_written_is_read_again(parameters: Parameters, tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    text = config_text("a", parameters, on_gpu=False, environment="/env.tar.gz")
    path.write_text(text, encoding="utf-8")
    assert read_parameters(read_config(path)["parameters"]) == parameters


def test_everything_differs_from_its_default() -> None:
    """Or the test above would pass over a parameter that is never written."""
    usual = Parameters()
    for each in fields(Parameters):
        assert getattr(EVERYTHING, each.name) != getattr(usual, each.name), each.name


@pytest.mark.parametrize(
    "environment", ["$$TRITON_MODEL_DIRECTORY/env.tar.gz", 'a "b" \\c\td\ne', "ümläut/環境", "it's"]
)
def test_any_path_of_an_environment_survives(environment: str) -> None:
    found = parsed(environment=environment).parameters["EXECUTION_ENV_PATH"].string_value
    assert found == environment


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ({"mdoe": {"string_value": "sd"}}, "'mdoe', expected branches, bundle"),
        ({"mode": {}}, "mode of config.pbtxt has no string_value"),
        ({"mode": "sd"}, "mode of config.pbtxt has no string_value"),
        ({"num_draft": {"string_value": "-1"}}, "num_draft of config.pbtxt is '-1'"),
        ({"max_waiting": {"string_value": "1e3"}}, "max_waiting of config.pbtxt is '1e3'"),
        ({"max_batch": {"string_value": "²"}}, "max_batch of config.pbtxt is '²'"),
    ],
)
def test_a_parameter_that_is_none_is_refused_by_name(written: dict, told: str) -> None:
    with pytest.raises(UsageError, match=".*" + told.replace(".", r"\.")):
        read_parameters(written)


def test_the_servers_own_parameters_are_left_to_it() -> None:
    own = {"EXECUTION_ENV_PATH": {"string_value": "/x"}, "FORCE_CPU_ONLY_INPUT_TENSORS": {}}
    assert read_parameters(own) == Parameters()


def test_it_says_what_it_was_tried_with() -> None:
    text = config_text("a", Parameters(), on_gpu=False)
    comment = " ".join(line.removeprefix("#").strip() for line in text.splitlines()[:24])
    assert "not run on a GPU" in comment
    assert "24.11" in comment
