"""Registration and layers with a stand-in for the vendor: what holds for any TensorRT."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engines.errors import BackendError, BundleIncompatibleError, UsageError
from engines.tensors import DType
from plugins import tensorrt as plugins
from plugins.layer import DeviceTensor
from plugins.verify.launch import scratch_bytes
from plugins.verify.tensorrt import SIGNATURE as VERIFY
from tests.plugins.fake_tensorrt import (
    DataType,
    Desc,
    FakeTensorRT,
    PluginField,
    PluginFieldType,
    TensorFormat,
    TensorRTPhase,
)

INPUTS = (
    Desc((2, 5, 100), DataType.HALF),
    Desc((2, 4), DataType.INT64),
    Desc((2,), DataType.INT64),
)
OUTPUTS = (Desc((2,), DataType.INT64), Desc((2,), DataType.INT64))


@pytest.fixture
def trt() -> FakeTensorRT:
    return FakeTensorRT()


def verify_creator_of(trt: FakeTensorRT) -> Any:
    plugins.register(trt)
    return trt.registry.get_creator("Verify", "1", "ssd")


def verify_layer(trt: FakeTensorRT) -> Any:
    return verify_creator_of(trt).create_plugin("verify", [], TensorRTPhase.BUILD)


class Launches:
    """A launcher that notes what it is asked for."""

    def __init__(self) -> None:
        self.layers: list[str] = []
        self.tensors: list[DeviceTensor] = []
        self.stream = self.workspace = 0

    def __call__(
        self,
        layer: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        stream: int,
        workspace: int,
    ) -> None:
        self.layers.append(layer)
        self.tensors = [*inputs, *outputs]
        self.stream, self.workspace = stream, workspace


# The registry. ------------------------------------------------------------------------------


def test_registration_brings_both_layers_and_keeps_them_alive(trt: FakeTensorRT) -> None:
    """A registry holds bare pointers: a collected creator would be a crash later."""
    assert plugins.missing(trt, plugins.NAMES) == ["ssd::Verify@1", "ssd::Sample@1"]
    plugins.register(trt)
    gc.collect()
    assert plugins.missing(trt, plugins.NAMES) == []


def test_a_second_registration_changes_nothing(trt: FakeTensorRT) -> None:
    plugins.register(trt)
    creators = dict(trt.registry.creators)
    plugins.register(trt)
    assert dict(trt.registry.creators) == creators


def test_each_vendor_module_has_its_own_registration(trt: FakeTensorRT) -> None:
    """TensorRT and TensorRT-RTX in one process: the first must not stand for the second."""
    other = FakeTensorRT()
    plugins.register(trt)
    assert plugins.missing(other, plugins.NAMES) == list(plugins.NAMES)
    plugins.register(other)
    assert plugins.missing(other, plugins.NAMES) == []


def test_layers_of_other_code_are_not_taken_for_ours(trt: FakeTensorRT) -> None:
    trt.registry.register_creator(verify_creator_of(FakeTensorRT()))
    with pytest.raises(BackendError, match="has registered ssd::Verify@1 already"):
        plugins.register(trt)
    assert plugins.missing(trt, plugins.NAMES) == ["ssd::Sample@1"]


def test_a_registry_that_refuses_is_left_empty(trt: FakeTensorRT) -> None:
    """Creators that nobody keeps must not stay in it, and a later call must try again."""
    trt.registry.refuses = "Sample"
    with pytest.raises(BackendError, match="tensorrt did not take ssd::Sample@1"):
        plugins.register(trt)
    gc.collect()
    assert plugins.missing(trt, plugins.NAMES) == list(plugins.NAMES)
    trt.registry.refuses = None
    plugins.register(trt)
    assert plugins.missing(trt, plugins.NAMES) == []


@pytest.mark.parametrize("name", ["sdd::Verify@1", "ssd::Verify@2", "ssd::verify@1", "::Verify@1"])
def test_another_name_namespace_or_version_is_missing(trt: FakeTensorRT, name: str) -> None:
    plugins.register(trt)
    assert plugins.missing(trt, ["ssd::Verify@1", name]) == [name]


@pytest.mark.parametrize("name", ["ssd::Verify", "Verify@1", "ssd::@1", "ssd::Verify@", ""])
def test_a_name_without_its_parts_is_refused(trt: FakeTensorRT, name: str) -> None:
    with pytest.raises(UsageError, match="a plugin is named like ssd::Verify@1"):
        plugins.missing(trt, [name])


def test_what_a_plan_needs_is_named_before_it_is_read(trt: FakeTensorRT) -> None:
    with pytest.raises(BackendError, match=r"ssd::Verify@1, not registered with tensorrt; call"):
        plugins.require(trt, ["ssd::Verify@1"])
    plugins.register(trt)
    plugins.require(trt, ["ssd::Verify@1"])
    with pytest.raises(BundleIncompatibleError, match=r"needs ssd::Verify@2, .*export build"):
        plugins.require(trt, ["ssd::Verify@1", "ssd::Verify@2"])


# Layers. ------------------------------------------------------------------------------------


def test_a_layer_is_constructed_through_all_its_interfaces(trt: FakeTensorRT) -> None:
    layer = verify_layer(trt)
    assert layer.constructed == {
        trt.IPluginV3,
        trt.IPluginV3OneCore,
        trt.IPluginV3OneBuild,
        trt.IPluginV3OneRuntime,
    }
    assert (layer.plugin_namespace, layer.plugin_name, layer.plugin_version) == (
        "ssd",
        "Verify",
        "1",
    )
    assert layer.num_outputs == len(layer.get_output_data_types([each.type for each in INPUTS]))


def test_clones_are_separate_objects(trt: FakeTensorRT) -> None:
    """TensorRT destroys each on its own."""
    layer = verify_layer(trt)
    layers = [layer, layer.clone(), layer.attach_to_context(None)]
    assert len({id(each) for each in layers}) == 3


def test_output_shapes_are_expressions_of_the_inputs(trt: FakeTensorRT) -> None:
    plugins.register(trt)
    sample = trt.registry.get_creator("Sample", "1", "ssd").create_plugin(
        "", [], TensorRTPhase.BUILD
    )
    batch, rows, vocab = object(), object(), object()
    assert sample.get_output_shapes([[batch, rows, vocab], [vocab]], [], None) == [[batch, rows]]
    verify = verify_layer(trt)
    shapes = verify.get_output_shapes([[batch, rows, vocab], [batch, object()], [batch]], [], None)
    assert shapes == [[batch], [batch]]


@pytest.mark.parametrize(
    ("position", "desc", "fits"),
    [
        (0, Desc((2, 5, 100), DataType.FLOAT), True),
        (0, Desc((2, 5, 100), DataType.BF16), True),
        (0, Desc((2, 5, 100), DataType.INT8), False),
        (0, Desc((2, 5, 100), DataType.HALF, TensorFormat.CHW32), False),
        (1, Desc((2, 4), DataType.INT32), False),
        (3, Desc((2,), DataType.INT64), True),
        (4, Desc((2,), DataType.INT32), False),
    ],
)
def test_only_dense_tensors_of_the_right_types_fit(
    trt: FakeTensorRT, position: int, desc: Desc, fits: bool
) -> None:
    in_out = [*INPUTS, *OUTPUTS]
    in_out[position] = desc
    assert verify_layer(trt).supports_format_combination(position, in_out, 3) is fits


def test_a_refusal_is_kept_until_it_is_asked_for(trt: FakeTensorRT) -> None:
    """The vendor reports a code; the reason would be lost."""
    layer = verify_layer(trt)
    types = [DataType.INT8, DataType.INT64, DataType.INT64]
    with pytest.raises(BackendError, match=r"logits must be float32 or .*, found int8"):
        layer.get_output_data_types(types)
    [reason] = plugins.refusals(trt)
    assert "ssd::Verify@1: logits" in reason
    assert plugins.refusals(trt) == []
    assert plugins.refusals(FakeTensorRT()) == []


def test_shapes_that_do_not_fit_together_are_refused_before_they_run(trt: FakeTensorRT) -> None:
    layer = verify_layer(trt)
    layer.on_shape_change(INPUTS, OUTPUTS)
    wrong = (INPUTS[0], Desc((2, 5), DataType.INT64), INPUTS[2])
    with pytest.raises(BackendError, match=r"drafts must be \[B, R-1\] with R = 5, found \[2, 5\]"):
        layer.on_shape_change(wrong, OUTPUTS)


def test_a_layer_without_a_launcher_does_not_pretend_to_have_run(trt: FakeTensorRT) -> None:
    layer = verify_layer(trt)
    with pytest.raises(BackendError, match="ssd::Verify@1 has nothing to run it"):
        layer.enqueue(INPUTS, OUTPUTS, [1, 2, 3], [4, 5], 0, 9)
    assert "ssd::Verify@1 has nothing to run it" in plugins.refusals(trt)[0]


def test_a_launcher_given_later_serves_layers_that_exist(trt: FakeTensorRT) -> None:
    layer = verify_layer(trt).attach_to_context(None)
    launches = Launches()
    plugins.register(trt, launches)
    plugins.register(trt)
    layer.enqueue(INPUTS, OUTPUTS, [1, 2, 3], [4, 5], 8, 9)
    assert launches.layers == ["ssd::Verify@1"]
    assert launches.tensors[0] == DeviceTensor(1, DType.FLOAT16, (2, 5, 100))
    assert launches.tensors[4] == DeviceTensor(5, DType.INT64, (2,))
    assert (launches.stream, launches.workspace) == (9, 8)


def test_a_layer_asks_for_scratch_that_its_largest_shapes_need(trt: FakeTensorRT) -> None:
    """An engine lends no more than this; a run of any smaller shape must fit too."""
    layer = verify_layer(trt)
    assert layer.get_workspace_size(INPUTS, OUTPUTS) == scratch_bytes([INPUTS[0].dims])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BackendError("the kernel did not launch"), "the kernel did not launch"),
        (ZeroDivisionError("zero blocks"), "ZeroDivisionError('zero blocks')"),
    ],
)
def test_a_launchers_failure_is_the_layers_failure(
    trt: FakeTensorRT, error: Exception, reason: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    plugins.register(trt, fail)
    with pytest.raises(type(error)):
        verify_layer(trt).enqueue(INPUTS, OUTPUTS, [1, 2, 3], [4, 5], 0, 9)
    assert plugins.refusals(trt) == [reason]


# What a plan keeps. -------------------------------------------------------------------------


def test_a_plan_with_these_fields_is_read_back(trt: FakeTensorRT) -> None:
    layer = verify_layer(trt)
    fields = layer.get_fields_to_serialize()
    restored = verify_creator_of(trt).create_plugin("", fields, TensorRTPhase.RUNTIME)
    assert restored.plugin_name == "Verify"


@pytest.mark.parametrize("text", [None, "", "0123456789abcdef", "\xff"])
def test_a_plan_of_another_meaning_is_refused(trt: FakeTensorRT, text: str | None) -> None:
    creator = verify_creator_of(trt)
    fields = [] if text is None else [char_field("meaning", text)]
    with pytest.raises(BundleIncompatibleError, match=f"expected {VERIFY.digest}"):
        creator.create_plugin("", fields, TensorRTPhase.RUNTIME)


def test_a_terminated_text_means_the_same(trt: FakeTensorRT) -> None:
    """The parser hands texts on with their closing NUL; a plan may."""
    fields = [char_field("meaning", VERIFY.digest + "\0")]
    verify_creator_of(trt).create_plugin("", fields, TensorRTPhase.RUNTIME)


def char_field(name: str, text: str) -> PluginField:
    return PluginField(name, np.frombuffer(text.encode("latin-1"), np.int8), PluginFieldType.CHAR)
