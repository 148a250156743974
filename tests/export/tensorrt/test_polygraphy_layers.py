"""What polygraphy's start registers, on a GPU that is host memory."""

from __future__ import annotations

import numpy as np
import pytest

from engines.errors import MissingDependencyError
from export.tensorrt import polygraphy_plugins
from export.tensorrt.vendor import Vendor
from plugins import tensorrt as plugins
from plugins.registry import OPERATORS
from tests.helpers.fake_gpu import FakeCuda
from tests.plugins.fake_tensorrt import DataType, Desc, FakeTensorRT, TensorRTPhase

pytestmark = pytest.mark.polygraphy


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr("polygraphy.cuda.cuda.G_CUDA", fake)
    return fake


@pytest.mark.parametrize(("rtx", "name"), [(True, "tensorrt-rtx"), (False, "tensorrt")])
def test_a_registered_layer_runs_by_its_reference(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, rtx: bool, name: str
) -> None:
    """It had nothing to run it: plans were built that ``polygraphy run`` could not execute."""
    trt, asked = FakeTensorRT(), []

    def load(product: str) -> Vendor:
        asked.append(product)
        return Vendor(trt, product, "1.0", is_rtx=rtx)

    monkeypatch.setattr("polygraphy.config.USE_TENSORRT_RTX", rtx)
    monkeypatch.setattr(polygraphy_plugins.vendor, "load", load)
    assert polygraphy_plugins.argument_groups() == []
    assert asked == [name]
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((2, 5, 40), dtype=np.float32)
    drafts = logits.argmax(-1)[:, :-1].copy()
    drafts[1, 2] = 39
    arrays = (logits, drafts, np.array([4, 3]), np.full(2, -1), np.full(2, -1))
    addresses = [cuda.malloc(array.nbytes) for array in arrays]
    for address, array in zip(addresses, arrays, strict=True):
        cuda.memcpy(address, array.ctypes.data, array.nbytes, None)
    types = (DataType.FLOAT, *[DataType.INT64] * 4)
    descs = [Desc(array.shape, dtype) for array, dtype in zip(arrays, types, strict=True)]
    creator = trt.registry.get_creator("Verify", "1", "ssd")
    layer = creator.create_plugin("", [], TensorRTPhase.BUILD).attach_to_context(None)
    layer.enqueue(descs[:3], descs[3:], addresses[:3], addresses[3:], 0, 1)
    for address, array in zip(addresses[3:], arrays[3:], strict=True):
        cuda.memcpy(array.ctypes.data, address, array.nbytes, None)
    expected = OPERATORS["Verify"].reference(*arrays[:3])
    np.testing.assert_array_equal(arrays[3:], expected)
    assert arrays[3].tolist() == [4, 2]
    assert plugins.refusals(trt) == []


def test_without_tensorrt_nothing_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(product: str) -> Vendor:
        raise MissingDependencyError(product, "rtx", "compiling")

    monkeypatch.setattr(polygraphy_plugins.vendor, "load", absent)
    assert polygraphy_plugins.argument_groups() == []
