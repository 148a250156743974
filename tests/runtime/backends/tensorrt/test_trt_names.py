"""The names and parameters of TensorRT that sessions use: the packages have them, as the fakes do.

Compared are TensorRT-RTX where it is installed, standard TensorRT where it is, and what NVIDIA's
bindings of TensorRT 10.15.1 and 11.4.0 document: read from their docstrings, and equal in both but
for an overload that we do not use. None of it needs a GPU.
"""

from __future__ import annotations

import inspect
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engines.errors import BackendError
from engines.manifest import TARGET
from export.tensorrt.capabilities import local_gpu
from plugins.layer import VENDOR_NAMES
from plugins.vendor_log import logger_for
from runtime.backends.tensorrt import vendor_api as api
from runtime.backends.tensorrt.engine import Gpu, LoadedEngine
from runtime.backends.tensorrt.vendor import RTX, load_vendor
from tests.helpers import fake_tensorrt_engine, fake_tensorrt_module, fake_tensorrt_state
from tests.helpers.fake_cuda import FakeCuda
from tests.helpers.fake_tensorrt_context import FakeContext
from tests.helpers.fake_tensorrt_module import FakeTensorRt

COMMON: dict[str, tuple[type, str]] = {
    "Runtime": (api.Runtime, "Runtime"),
    "Engine": (api.Engine, "ICudaEngine"),
    "Context": (api.Context, "IExecutionContext"),
    "Config": (api.Config, "IRuntimeConfig"),
}
"""Each protocol, and the class of the packages that it stands for."""
RTX_ONLY: dict[str, tuple[type, str]] = {
    "RtxRuntime": (api.RtxRuntime, "Runtime"),
    "RtxConfig": (api.RtxConfig, "IRuntimeConfig"),
    "RuntimeCache": (api.RuntimeCache, "IRuntimeCache"),
}
FAKES = {
    "Runtime": fake_tensorrt_module.FakeRuntime,
    "Engine": fake_tensorrt_engine.FakeEngine,
    "Context": FakeContext,
    "Config": fake_tensorrt_engine.FakeConfig,
    "RtxRuntime": fake_tensorrt_module.FakeRtxRuntime,
    "RtxConfig": fake_tensorrt_engine.FakeRtxConfig,
    "RuntimeCache": fake_tensorrt_state.FakeRuntimeCache,
}
VALUES = {
    "DataType": tuple(VENDOR_NAMES.values()),
    "EngineStat": ("TOTAL_WEIGHTS_SIZE",),
    "ExecutionContextAllocationStrategy": ("USER_MANAGED",),
    "TensorFormat": ("LINEAR",),
    "TensorIOMode": ("INPUT", "OUTPUT"),
    "TensorLocation": ("DEVICE",),
}
RTX_VALUES = {
    "CudaGraphStrategy": ("WHOLE_GRAPH_CAPTURE",),
    "DynamicShapesKernelSpecializationStrategy": ("EAGER",),
    "EngineValidity": ("VALID", "SUBOPTIMAL", "INVALID"),
    "EngineInvalidityDiagnostics": ("VERSION_MISMATCH", "UNSUPPORTED_CC"),
}
PROPERTY = None
STANDARD: dict[str, dict[str, list[tuple[str, ...]] | None]] = {
    "Runtime": {"deserialize_cuda_engine": [("serialized_engine",), ("stream_reader_v2",)]},
    "ICudaEngine": {
        "create_execution_context": [("strategy=",), ("runtime_config=",)],
        "create_runtime_config": [()],
        "device_memory_size_v2": PROPERTY,
        "get_aliased_input_tensor": [("name",)],
        "get_engine_stat": [("stat=",)],
        "get_tensor_dtype": [("name",)],
        "get_tensor_format": [("name",), ("name", "profile_index")],
        "get_tensor_location": [("name",)],
        "get_tensor_mode": [("name",)],
        "get_tensor_name": [("index",)],
        "get_tensor_profile_shape": [("name", "profile_index")],
        "get_tensor_shape": [("name",)],
        "num_io_tensors": PROPERTY,
        "num_optimization_profiles": PROPERTY,
    },
    "IExecutionContext": {
        "execute_async_v3": [("stream_handle",)],
        "infer_shapes": [()],
        "set_device_memory": [("memory", "size")],
        "set_input_shape": [("name", "shape")],
        "set_optimization_profile_async": [("profile_index", "stream_handle")],
        "set_tensor_address": [("name", "memory")],
    },
    "IRuntimeConfig": {"set_execution_context_allocation_strategy": [("strategy=",)]},
}
"""What standard TensorRT's bindings document: the overloads of each method, a default as ``=``."""


def members(protocol: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(protocol, name)
        for name in dir(protocol)
        if not name.startswith("_")
    }


def overloads(method: Any) -> list[tuple[str, ...]]:
    """The parameters that a binding's docstring gives a method, without self; each once, whatever
    their types."""
    found = []
    for line in (method.__doc__ or "").splitlines():
        match = re.match(rf"(?:\d+\. )?{method.__name__}\(self: [\w.:]+(?:, )?(.*)\) -> ", line)
        if match:
            given = re.sub("<[^>]*>", "0", match[1])
            parameters = re.findall(r"(\w+): (?:[^,=\[]|\[[^]]*\])+(=?)", given)
            found.append(tuple(name + default for name, default in parameters))
    return list(dict.fromkeys(found))


def misfit(name: str, ours: Any, theirs: list[tuple[str, ...]] | None) -> str | None:
    """Why calls that are written for the protocol's member do not fit, or None."""
    if isinstance(ours, property):
        return None if theirs is PROPERTY else f"{name} is a method"
    if theirs is PROPERTY:
        return f"{name} is no method"
    given = list(inspect.signature(ours).parameters)[1:]
    for parameters in theirs:
        names = [each.rstrip("=") for each in parameters]
        needed = [each for each in parameters if not each.endswith("=")]
        if names[: len(given)] == given and len(needed) <= len(given):
            return None
    return f"{name}({', '.join(given)}) is none of {theirs}"


def documented(real: type, name: str) -> list[tuple[str, ...]] | None:
    member = inspect.getattr_static(real, name, None)
    if isinstance(member, property):
        return PROPERTY
    return [] if member is None else overloads(getattr(real, name))


def misfits(module: Any, protocols: dict[str, tuple[type, str]]) -> Iterator[str]:
    for protocol, name in protocols.values():
        real = getattr(module, name)
        for member, ours in members(protocol).items():
            why = misfit(f"{name}.{member}", ours, documented(real, member))
            if why is not None:
                yield why


def absent(module: Any, values: dict[str, tuple[str, ...]]) -> list[str]:
    return [
        f"{enum}.{value}"
        for enum, wanted in values.items()
        for value in wanted
        if not hasattr(getattr(module, enum, None), value)
    ]


def test_every_protocol_is_compared() -> None:
    found = {
        name
        for name, value in vars(api).items()
        if inspect.isclass(value) and value.__module__ == api.__name__
    }
    assert found == COMMON.keys() | RTX_ONLY.keys() == FAKES.keys()


@pytest.mark.rtx
def test_tensorrt_rtx_has_every_name_and_signature() -> None:
    module = load_vendor(RTX).module
    assert list(misfits(module, COMMON | RTX_ONLY)) == []
    assert absent(module, VALUES | RTX_VALUES) == []


def test_standard_tensorrt_has_every_name_and_signature() -> None:
    module = pytest.importorskip("tensorrt")
    assert list(misfits(module, COMMON)) == []
    assert absent(module, VALUES) == []


@pytest.mark.parametrize("protocol", COMMON)
def test_standard_tensorrt_documents_every_name_and_signature(protocol: str) -> None:
    ours, name = COMMON[protocol]
    table = STANDARD[name]
    assert members(ours).keys() == table.keys()
    found = [misfit(member, value, table[member]) for member, value in members(ours).items()]
    assert [why for why in found if why is not None] == []


@pytest.mark.rtx
@pytest.mark.parametrize("name", STANDARD)
def test_what_is_documented_of_the_one_holds_for_the_other(name: str) -> None:
    """They are built from one source; the table above would be wrong before they were."""
    real = getattr(load_vendor(RTX).module, name)
    assert {member: documented(real, member) for member in STANDARD[name]} == STANDARD[name]


@pytest.mark.parametrize("protocol", FAKES)
def test_the_fakes_have_every_name_and_signature(protocol: str) -> None:
    ours, _ = (COMMON | RTX_ONLY)[protocol]
    for name, value in members(ours).items():
        theirs = inspect.getattr_static(FAKES[protocol], name)
        assert isinstance(value, property) == isinstance(theirs, property), name
        if not isinstance(value, property):
            assert list(inspect.signature(value).parameters) == list(
                inspect.signature(theirs).parameters
            ), name


@pytest.mark.parametrize("name", ["tensorrt", "tensorrt_rtx"])
def test_the_fakes_have_the_values_of_their_product_and_no_others(name: str) -> None:
    fake = FakeTensorRt(FakeCuda(), name)
    assert absent(fake, VALUES) == []
    own = [f"{enum}.{value}" for enum, values in RTX_VALUES.items() for value in values]
    assert absent(fake, RTX_VALUES) == ([] if fake.is_rtx else own)


class Narrow:
    """Misses what `misfit` has to see."""

    def set_tensor_address(self) -> None:
        """set_tensor_address(self: a.b.Narrow, name: str) -> bool"""

    def set_input_shape(self) -> None:
        """set_input_shape(self: a.Narrow, name: str, shape: tuple[int, int], more: int) -> bool"""

    def infer_shapes(self) -> None:
        """infer_shapes(self: a.b.Narrow, deep: bool = False) -> List[str]"""

    @property
    def execute_async_v3(self) -> int:
        return 0


def test_a_name_that_does_not_fit_is_reported() -> None:
    found = {
        name: misfit(name, value, documented(Narrow, name))
        for name, value in members(api.Context).items()
    }
    assert found == {
        "execute_async_v3": "execute_async_v3 is no method",
        "infer_shapes": None,
        "set_device_memory": "set_device_memory(memory, size) is none of []",
        "set_input_shape": ("set_input_shape(name, shape) is none of [('name', 'shape', 'more')]"),
        "set_optimization_profile_async": (
            "set_optimization_profile_async(profile_index, stream_handle) is none of []"
        ),
        "set_tensor_address": "set_tensor_address(name, memory) is none of [('name',)]",
    }


@pytest.mark.rtx
def test_tensorrt_rtx_takes_a_mapped_plan_and_says_why_it_refuses_one() -> None:
    module = load_vendor(RTX).module
    logger, messages = logger_for(module)
    runtime = module.Runtime(logger)
    with mmap.mmap(-1, 4096) as whole, memoryview(whole) as plan:
        messages.clear()
        assert runtime.deserialize_cuda_engine(plan) is None
        assert messages.errors_here
        validity, reasons = runtime.get_engine_validity(plan[: runtime.engine_header_size])
        assert validity == module.EngineValidity.INVALID
        assert isinstance(reasons, int)
        kinds = module.EngineInvalidityDiagnostics.__members__.values()
        assert all(isinstance(kind.value, int) for kind in kinds)
        messages.clear()


@pytest.mark.rtx
def test_a_real_plan_goes_through_every_check_that_needs_no_gpu() -> None:
    """Up to the call that reads it, which without a GPU fails with TensorRT-RTX's own words."""
    from tests.helpers.compiled_bundle import compiled_bundle

    bundle = compiled_bundle("fp16")
    assert bundle.target.plan is not None
    gpu, notes = local_gpu(), []
    capability = bundle.target.plan.capabilities[0]

    def load() -> LoadedEngine:
        return LoadedEngine(
            load_vendor(RTX),
            Path(bundle.path) / TARGET,
            bundle.target,
            Gpu("some GPU", capability),
            notes.append,
        )

    if gpu is None:
        with pytest.raises(BackendError, match=r"deserialize_cuda_engine .* bytes\).* failed on "):
            load()
    else:
        load().release()


def test_the_driver_has_the_calls_that_cuda_core_lacks() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    assert "(dstDevice, unsigned char uc, size_t N, hStream)" in driver.cuMemsetD8Async.__doc__
    assert "cuStreamIsCapturing(hStream)" in driver.cuStreamIsCapturing.__doc__
    status = driver.CUstreamCaptureStatus
    assert status.CU_STREAM_CAPTURE_STATUS_NONE == 0
