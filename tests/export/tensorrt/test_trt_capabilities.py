from __future__ import annotations

import ctypes
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from engines.errors import UsageError
from export.tensorrt import capabilities
from export.tensorrt.capabilities import (
    LocalGpu,
    capability_value,
    choose_capabilities,
    local_capability,
    supported_capabilities,
)
from export.tensorrt.vendor import Vendor, load


class Table(IntEnum):
    NONE = 0
    CURRENT = 1
    SM75 = 75
    SM89 = 89
    SM120 = 120
    SM130 = 130


RTX = Vendor(SimpleNamespace(ComputeCapability=Table), "tensorrt-rtx", "1.9.0.1", is_rtx=True)
STANDARD = Vendor(SimpleNamespace(), "tensorrt", "11.4.0.106", is_rtx=False)
H200 = LocalGpu("NVIDIA H200", "9.0")


def test_what_is_supported_is_read_from_the_module() -> None:
    """A list of our own would miss GPUs that a later release knows."""
    assert supported_capabilities(RTX) == ("7.5", "8.9", "12.0", "13.0")
    assert capability_value(RTX, "13.0") is Table.SM130
    assert supported_capabilities(STANDARD) == ()


def test_the_default_is_all_that_have_every_precision() -> None:
    assert choose_capabilities(RTX, (), "bf16") == ("8.9", "12.0", "13.0")
    assert choose_capabilities(RTX, ["12.0", "7.5", "12.0"], "fp16") == ("7.5", "12.0")


@pytest.mark.parametrize(
    ("wanted", "precision", "words"),
    [
        ("9.0", "fp16", "choose from 7.5 8.9 12.0 13.0, or build .*--backend tensorrt"),
        ("6.1", "fp16", r"6\.1 is not supported by tensorrt-rtx 1\.9\.0\.1; .* 13\.0$"),
        ("sm89", "fp16", "written as major.minor"),
        ("", "fp16", "written as major.minor"),
        ("8", "fp16", "written as major.minor"),
        ("8.9 ", "fp16", "'8.9 ' is not written as major.minor, one of 7.5 8.9 12.0 13.0; sev"),
        ("8.9 12.0", "fp16", "'8.9 12.0' is not .*; several are words of their own: 8.9 12.0"),
        ("8.9,12.0", "fp16", "'8.9,12.0' is not written as major.minor"),
        ("9" * 5000 + ".0", "fp16", r"'9{17}\.\.\.' is not written as major.minor"),
        ("\N{FULLWIDTH DIGIT EIGHT}.9", "fp16", "is not written as major.minor"),
        ("7.5", "bf16", "no bfloat16 arithmetic .*--precision fp16"),
    ],
)
def test_a_capability_that_cannot_be_is_refused(wanted: str, precision: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        choose_capabilities(RTX, ["8.9", wanted], precision)


def test_standard_tensorrt_compiles_for_the_gpu_here_and_no_other() -> None:
    assert choose_capabilities(STANDARD, (), "bf16", H200) == ("9.0",)
    assert choose_capabilities(STANDARD, ["9.0"], "fp16", H200) == ("9.0",)
    with pytest.raises(UsageError, match=r"here 9\.0 \(NVIDIA H200\)"):
        choose_capabilities(STANDARD, ["8.9"], "fp16", H200)
    with pytest.raises(UsageError, match=r"'9\.0 ' is not written as major\.minor, 8\.9 for exam"):
        choose_capabilities(STANDARD, ["9.0 "], "fp16", H200)
    with pytest.raises(UsageError, match=r"no GPU can be used here.*--backend tensorrt-rtx"):
        choose_capabilities(STANDARD, (), "fp16", None)
    with pytest.raises(UsageError, match="no bfloat16"):
        choose_capabilities(STANDARD, (), "bf16", LocalGpu("NVIDIA T4", "7.5"))


class Driver:
    """libcuda with one GPU, or with a call that fails."""

    def __init__(self, failing: str = "") -> None:
        self._failing = failing

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> int:
            if name == "cuDeviceGetName":
                arguments[0].value = b"NVIDIA H200"
            if name == "cuDeviceGetAttribute":
                arguments[0]._obj.value = {75: 9, 76: 0}[arguments[1]]
            return 100 if name == self._failing else 0

        return call


def test_the_gpu_here_is_asked_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Driver())
    assert capabilities.local_gpu() == H200
    assert local_capability() == "9.0"
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: Driver(failing="cuInit"))
    assert capabilities.local_gpu() is None

    def absent(_name: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert local_capability() is None


@pytest.mark.rtx
def test_the_installed_release_knows_what_the_documents_promise() -> None:
    supported = supported_capabilities(load("tensorrt-rtx"))
    assert {"7.5", "8.0", "8.6", "8.9", "12.0"} <= set(supported)
    assert "9.0" not in supported


@pytest.mark.gpu
def test_a_real_gpu_has_a_name_and_a_capability() -> None:
    gpu = capabilities.local_gpu()
    assert gpu is not None
    assert gpu.name
    major, minor = gpu.capability.split(".")
    assert int(major) >= 7
    assert int(minor) >= 0
