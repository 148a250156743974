"""What is said where no GPU can be driven: the driver first, then what to install."""

from __future__ import annotations

import pytest

from engines.errors import DeviceError, MissingDependencyError
from runtime.device.cuda_driver import require_driver
from runtime.loading import hardware


def test_without_a_driver_no_package_is_blamed() -> None:
    """A newcomer installed cuda-core and met the next error."""
    with pytest.raises(DeviceError) as caught:
        require_driver("libno-such-driver.so.1")
    message = str(caught.value)
    assert message.startswith("no NVIDIA driver is installed here (libno-such-driver.so.1")
    assert "--device cpu" in message


def test_the_driver_is_asked_for_before_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise DeviceError("no NVIDIA driver is installed here")

    monkeypatch.setattr(hardware, "require_driver", no_driver)
    with pytest.raises(DeviceError, match=r"^cuda:0: no NVIDIA driver is installed here$"):
        hardware.INSTALLED.free_memory("cuda:0")


def test_with_a_driver_the_extras_of_each_backend_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cuda extra alone runs nothing, and the gpu extra lies over an installed onnxruntime."""

    def no_package() -> None:
        raise MissingDependencyError("cuda-core", "cuda", "a CUDA device")

    monkeypatch.setattr(hardware, "require_driver", lambda: None)
    monkeypatch.setattr(hardware, "load_cuda", no_package)
    with pytest.raises(DeviceError) as caught:
        hardware.INSTALLED.free_memory("cuda:0")
    message = str(caught.value)
    assert "cuda-core, which is not installed" in message
    assert "pip uninstall -y onnxruntime; pip install 'ssd-trt[gpu]'" in message
    assert "'ssd-trt[rtx,cuda]' or 'ssd-trt[tensorrt,cuda]'" in message
