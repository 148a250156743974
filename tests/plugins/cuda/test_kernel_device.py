"""Launching on a GPU, against a stand-in for the driver."""

from __future__ import annotations

import ctypes
from enum import Enum
from typing import Any

import numpy as np
import pytest

from engines.errors import DeviceError, UsageError
from plugins.cuda.args import Args, Array, Number, Values
from plugins.cuda.compiler import KernelImage
from plugins.cuda.device import DeviceKernel
from plugins.cuda.report import EntryReport

ARGS = Args(Array("out", is_output=True), Number("count"))
IMAGE = KernelImage("scale", "9.0", b"cubin", (EntryReport("ssd_scale", 8, 0, 0),))


class Result(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2


class FakeDriver:
    """cuda.bindings.driver: every call returns a status and its results."""

    CUresult = Result

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.launches: list[tuple[Any, ...]] = []
        self.kernels: dict[int, bytes] = {}
        self.loaded: list[int] = []

    def _status(self, name: str) -> Result:
        failed = name == self.failing
        return Result.CUDA_ERROR_OUT_OF_MEMORY if failed else Result.CUDA_SUCCESS

    def CUstream(self, handle: int) -> tuple[str, int]:  # noqa: N802
        return "stream", handle

    def CUfunction(self, handle: int) -> tuple[str, bytes]:  # noqa: N802
        return "function", self.kernels[handle]

    def cuLibraryLoadData(self, image: bytes, *options: Any) -> tuple[Any, ...]:  # noqa: N802
        assert options == (None, None, 0, None, None, 0)
        return self._status("cuLibraryLoadData"), image

    def cuLibraryGetKernel(self, library: bytes, name: bytes) -> tuple[Any, ...]:  # noqa: N802
        self.kernels[len(self.kernels)] = library + b" " + name
        return self._status("cuLibraryGetKernel"), len(self.kernels) - 1

    def cuKernelGetFunction(self, kernel: int) -> tuple[Any, ...]:  # noqa: N802
        self.loaded.append(kernel)
        return self._status("cuKernelGetFunction"), kernel

    def cuLaunchKernel(self, *arguments: Any) -> tuple[Any, ...]:  # noqa: N802
        *given, parameters, extra = arguments
        [first] = (ctypes.c_void_p * 1).from_address(parameters)
        struct = ARGS.struct.from_address(first)
        # The driver copies what the parameters name before it returns.
        self.launches.append((*given, struct.out, struct.count, extra))
        return (self._status("cuLaunchKernel"),)


def test_a_launch_hands_the_struct_by_value() -> None:
    driver = FakeDriver()
    kernel = DeviceKernel(IMAGE, ARGS, driver)
    kernel.launch("ssd_scale", {"out": 4096, "count": 7}, num_blocks=3, num_threads=64, stream=99)
    function = "function", b"cubin ssd_scale"
    assert driver.launches == [(function, 3, 1, 1, 64, 1, 1, 0, ("stream", 99), 4096, 7, 0)]


def test_a_launch_like_the_one_before_packs_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of launches a round, whose struct takes ten times as long as the rest of the call."""
    driver, packed = FakeDriver(), []
    pack = ARGS.pack
    monkeypatch.setattr(ARGS, "pack", lambda values: packed.append(dict(values)) or pack(values))
    kernel = DeviceKernel(IMAGE, ARGS, driver)
    for count in (7, 7, 8, 7):
        values = {"count": count, "out": 4096}
        kernel.launch("ssd_scale", values, num_blocks=1, num_threads=32, stream=0)
    assert [each[-2] for each in driver.launches] == [7, 7, 8, 7]
    assert packed == [{"count": 7, "out": 4096}, {"count": 8, "out": 4096}]


def test_ever_new_numbers_do_not_fill_the_memory() -> None:
    kernel = DeviceKernel(IMAGE, ARGS, FakeDriver())
    for count in range(3000):
        values = {"out": None, "count": count}
        kernel.launch("ssd_scale", values, num_blocks=1, num_threads=32, stream=0)
    assert len(kernel._kept) <= 1024


@pytest.mark.parametrize("values", [{"out": None}, {"out": None, "count": 1, "typo": 2}])
def test_fields_too_few_or_too_many_are_refused_each_time(values: dict[str, Any]) -> None:
    kernel = DeviceKernel(IMAGE, ARGS, FakeDriver())
    kernel.launch("ssd_scale", {"out": None, "count": 1}, num_blocks=1, num_threads=32, stream=0)
    with pytest.raises(UsageError, match="missing or unknown"):
        kernel.launch("ssd_scale", values, num_blocks=1, num_threads=32, stream=0)


def test_every_entry_is_in_the_context_before_the_first_launch() -> None:
    """The driver loads lazily; in a capture that fails."""
    driver = FakeDriver()
    DeviceKernel(IMAGE, ARGS, driver)
    assert driver.loaded == [0]


@pytest.mark.parametrize(
    "failing", ["cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"]
)
def test_an_image_that_the_driver_refuses(failing: str) -> None:
    with pytest.raises(DeviceError, match=f"{failing} of scale failed: CUDA_ERROR_OUT_OF_MEMORY"):
        DeviceKernel(IMAGE, ARGS, FakeDriver(failing))


def test_a_launch_that_the_driver_refuses() -> None:
    kernel = DeviceKernel(IMAGE, ARGS, FakeDriver("cuLaunchKernel"))
    with pytest.raises(DeviceError, match="cuLaunchKernel of scale"):
        kernel.launch(
            "ssd_scale", {"out": None, "count": 7}, num_blocks=1, num_threads=32, stream=0
        )


@pytest.mark.parametrize(
    ("entry", "num_threads", "reason"),
    [
        ("ssd_typo", 32, "no entry ssd_typo"),
        ("ssd_scale", 33, "multiple of 32"),
        ("ssd_scale", 0, "multiple of 32"),
    ],
)
def test_a_launch_that_cannot_be(entry: str, num_threads: int, reason: str) -> None:
    """Part of a warp would break the reductions, which shuffle whole ones."""
    driver = FakeDriver()
    kernel = DeviceKernel(IMAGE, ARGS, driver)
    with pytest.raises(UsageError, match=reason):
        kernel.launch(
            entry, {"out": None, "count": 7}, num_blocks=1, num_threads=num_threads, stream=0
        )
    assert driver.launches == []


def test_values_of_this_machine_travel_inside_the_launch() -> None:
    """Its caller may forget them at once: nothing is staged, nothing waited for."""
    driver = FakeDriver()
    kernel = DeviceKernel(IMAGE, Args(*ARGS.fields, Values("bytes", "uint8", 4)), driver)
    values = {"out": 4096, "count": 7, "bytes": np.array([1, 2], np.uint8)}
    kernel.launch("ssd_scale", values, num_blocks=1, num_threads=32, stream=0)
    assert len(driver.launches) == 1


def test_an_array_of_this_machine_is_refused() -> None:
    """A GPU that followed its address would end the process."""
    driver = FakeDriver()
    values = {"out": np.zeros(3), "count": 3}
    with pytest.raises(UsageError, match="device addresses of out"):
        DeviceKernel(IMAGE, ARGS, driver).launch(
            "ssd_scale", values, num_blocks=1, num_threads=32, stream=0
        )
    assert driver.launches == []
