"""The names and signatures of cuda.core that the device calls: they exist, and the fake has them.

Needs cuda.core, no GPU and no driver.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from runtime.device import cuda_api as api
from runtime.device.cuda import load_cuda
from runtime.device.cuda_driver import CoreAndDriver
from tests.helpers import fake_cuda_objects as fake
from tests.helpers.fake_cuda import FakeCuda

PROTOCOLS = {
    "GpuEvent": ("cuda.core", "Event", fake.FakeEvent),
    "GpuStream": ("cuda.core", "Stream", fake.FakeStream),
    "GpuBuffer": ("cuda.core", "Buffer", fake.FakeBuffer),
    "Gpu": ("cuda.core", "Device", fake.FakeDevice),
    "GpuContext": ("cuda.core", "Context", fake.FakeContext),
    "GpuResources": ("cuda.core", "DeviceResources", fake.FakeResources),
    "SmResource": ("cuda.core", "SMResource", fake.FakeSms),
    "DevicePool": ("cuda.core", "DeviceMemoryResource", fake.FakePool),
    "MemoryPool": ("cuda.core", "LegacyPinnedMemoryResource", fake.FakePool),
    "PeerSet": (
        "cuda.core._memory._peer_access_utils",
        "PeerAccessibleBySetProxy",
        fake.FakePool,
    ),
    "GpuGraphBuilder": ("cuda.core.graph", "GraphBuilder", fake.FakeGraphBuilder),
    "GpuGraph": ("cuda.core.graph", "Graph", fake.FakeGraph),
}
"""Each protocol, the class of cuda.core and the class of the fake that have to fit it."""

NONE = inspect.Parameter.empty


def members(protocol: type) -> list[str]:
    return sorted(name for name in dir(protocol) if not name.startswith("_"))


def mismatch(protocol: type, real: type, name: str) -> str | None:
    """Why calls written for the protocol's member do not fit the class's, or None."""
    ours, theirs = getattr(protocol, name), getattr(real, name, None)
    if theirs is None:
        return f"{real.__name__} has no {name}"
    if isinstance(ours, property):
        return f"{real.__name__}.{name} is a method" if inspect.isroutine(theirs) else None
    if not callable(theirs):
        return f"{real.__name__}.{name} is no method"
    wanted, found = inspect.signature(ours).parameters, inspect.signature(theirs).parameters
    for position, (parameter, what) in enumerate(wanted.items()):
        if parameter not in found:
            return f"{real.__name__}.{name} has no parameter {parameter}"
        is_by_name = what.kind is inspect.Parameter.KEYWORD_ONLY
        if not is_by_name and list(found)[position] != parameter:
            return f"{real.__name__}.{name} has {parameter} at another position"
        if found[parameter].default is NONE and what.default is not NONE:
            return f"{real.__name__}.{name} needs {parameter}"
    for parameter, what in found.items():
        if parameter not in wanted and what.default is NONE:
            return f"{real.__name__}.{name} also needs {parameter}"
    return None


def test_every_protocol_is_compared() -> None:
    protocols = {
        name
        for name, value in vars(api).items()
        if inspect.isclass(value) and value.__module__ == api.__name__
    }
    assert protocols - {"CudaCore"} == set(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_cuda_core_has_every_name_and_signature(protocol: str) -> None:
    module, name, _ = PROTOCOLS[protocol]
    ours = getattr(api, protocol)
    real = getattr(pytest.importorskip(module), name)
    assert members(ours)
    assert [why for member in members(ours) if (why := mismatch(ours, real, member))] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_fake_has_every_name_and_signature(protocol: str) -> None:
    ours = getattr(api, protocol)
    found = PROTOCOLS[protocol][2]
    assert [why for member in members(ours) if (why := mismatch(ours, found, member))] == []


def test_the_module_has_every_class_and_its_arguments() -> None:
    """Constructors of cuda.core show no signature; options are made, pools are read about."""
    pytest.importorskip("cuda.core")
    core: Any = load_cuda()
    assert all(callable(getattr(core, name)) for name in api.CudaCore.__annotations__)
    for module in (core, FakeCuda()):
        options = module.StreamOptions(nonblocking=True, priority=-1)
        assert (options.nonblocking, options.priority) == (True, -1)
        assert module.StreamOptions(nonblocking=True, priority=None).priority is None
        assert module.ContextOptions(resources=[]).resources == []
        assert module.SMResourceOptions(count=8).count == 8
        module.DeviceMemoryResourceOptions()
        module.LegacyPinnedMemoryResource()
    assert next(iter(inspect.signature(core.Device).parameters)) == "device_id"
    assert re.match(
        r"DeviceMemoryResource\(device_id: .*, options: ", core.DeviceMemoryResource.__doc__
    )


def test_all_devices_load_one_cuda() -> None:
    """Two would refuse each other's events."""
    pytest.importorskip("cuda.core")
    assert load_cuda() is load_cuda()


def test_the_driver_calls_that_cuda_core_lacks() -> None:
    driver = pytest.importorskip("cuda.bindings.driver")
    pytest.importorskip("cuda.core")
    core: Any = load_cuda()
    for name in ("cuCtxGetStreamPriorityRange", "cuMemGetInfo", "cuMemcpyAsync", "cuMemcpy2DAsync"):
        assert callable(getattr(driver, name))
    assert driver.CUresult.CUDA_SUCCESS == 0
    for name in ("greatest_priority", "free_memory", "copy", "copy_2d"):
        wanted = inspect.signature(getattr(api.CudaCore, name)).parameters
        assert list(inspect.signature(getattr(core, name)).parameters) == list(wanted)[1:]
        assert list(inspect.signature(getattr(FakeCuda(), name)).parameters) == list(wanted)[1:]


def test_a_strided_copy_has_the_fields_that_are_set() -> None:
    """Some cannot be read before they are set."""
    driver = pytest.importorskip("cuda.bindings.driver")
    wanted = {
        f"{end}{what}" for end in ("src", "dst") for what in ("MemoryType", "Device", "Pitch")
    }
    assert wanted | {"WidthInBytes", "Height"} <= set(dir(driver.CUDA_MEMCPY2D()))
    assert driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED.value == 4


def test_a_strided_copy_is_described_to_the_driver_as_it_was_asked_for() -> None:
    """Swapped ends or pitches would be seen on a GPU only."""
    driver = pytest.importorskip("cuda.bindings.driver")

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(driver, name)

        def cuMemcpy2DAsync(self, pieces: Any, stream: Any) -> tuple[Any]:  # noqa: N802
            self.pieces, self.stream = pieces, int(stream)
            return (driver.CUresult.CUDA_SUCCESS,)

        def cuMemcpyAsync(self, *arguments: Any) -> tuple[Any]:  # noqa: N802
            self.plain = [int(each) for each in arguments]
            return (driver.CUresult.CUDA_ERROR_INVALID_VALUE,)

    recording = Recording()
    core: Any = CoreAndDriver(None, recording)
    core.copy_2d(64, 128, width=4, height=2, source_pitch=8, target_pitch=16, stream=5)
    found = recording.pieces
    assert (int(found.srcDevice), int(found.dstDevice)) == (64, 128)
    assert (found.srcPitch, found.dstPitch, found.WidthInBytes, found.Height) == (8, 16, 4, 2)
    anywhere = driver.CUmemorytype.CU_MEMORYTYPE_UNIFIED
    assert (found.srcMemoryType, found.dstMemoryType, recording.stream) == (anywhere, anywhere, 5)
    with pytest.raises(RuntimeError, match="cuMemcpyAsync: CUDA_ERROR_INVALID_VALUE"):
        core.copy(64, 128, 4, 5)
    assert recording.plain == [128, 64, 4, 5]


def test_a_graph_builder_knows_the_mode_of_a_capture() -> None:
    builder = pytest.importorskip("cuda.core.graph").GraphBuilder
    assert "`thread_local`" in builder.begin_building.__doc__


class Narrow:
    """Breaks the protocol of a stream in every way that `mismatch` has to see."""

    handle = 0

    def record(self) -> None: ...

    def wait(self, event: object) -> None: ...

    def sync(self, timeout: float) -> None: ...

    close = 3


def test_a_name_that_does_not_fit_is_reported() -> None:
    found = [mismatch(api.GpuStream, Narrow, name) for name in members(api.GpuStream)]
    assert found == [
        "Narrow.close is no method",
        "Narrow has no create_graph_builder",
        None,
        "Narrow.record has no parameter event",
        "Narrow.sync also needs timeout",
        "Narrow.wait has no parameter event_or_stream",
    ]
