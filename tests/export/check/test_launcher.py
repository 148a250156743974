from __future__ import annotations

import numpy as np
import pytest

from engines.errors import BackendError
from engines.tensors import DType
from export.check.launcher import ReferenceLauncher
from plugins.layer import DeviceTensor
from plugins.registry import OPERATORS
from tests.helpers.fake_gpu import FakeCuda

pytestmark = pytest.mark.polygraphy


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr("polygraphy.cuda.cuda.G_CUDA", fake)
    return fake


def put(cuda: FakeCuda, array: np.ndarray) -> DeviceTensor:
    address = cuda.malloc(array.nbytes)
    cuda.memcpy(address, array.ctypes.data, array.nbytes, None)
    return DeviceTensor(address, DType(array.dtype.name), array.shape)


def take(cuda: FakeCuda, tensor: DeviceTensor) -> np.ndarray:
    array = np.empty(tensor.shape, tensor.dtype.numpy)
    cuda.memcpy(array.ctypes.data, tensor.address, array.nbytes, None)
    return array


def test_a_layer_gives_what_its_reference_does(cuda: FakeCuda) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 5, 40), dtype=np.float32)
    drafts = logits.argmax(-1)[:, :-1].copy()
    drafts[1, 2] = 39
    inputs = (logits, drafts, np.array([4, 4, 2]))
    outputs = [put(cuda, np.full(3, -1, np.int64)) for _ in range(2)]
    ReferenceLauncher()("ssd::Verify@1", [put(cuda, array) for array in inputs], outputs, 1)
    for output, expected in zip(outputs, OPERATORS["Verify"].reference(*inputs), strict=True):
        np.testing.assert_array_equal(take(cuda, output), expected)
    assert take(cuda, outputs[0]).tolist() == [4, 2, 2]


def test_bfloat16_logits_are_read_as_the_numbers_they_are(cuda: FakeCuda) -> None:
    """numpy lacks the type; as whole numbers a negative logit would be the largest."""
    logits = np.array([[[-2.5, 0.75, 0.5, -0.0]]], np.float32)
    halves = put(cuda, (logits.view(np.uint32) >> 16).astype(np.uint16).view(np.float16))
    tensor = DeviceTensor(halves.address, DType.BFLOAT16, logits.shape)
    output = put(cuda, np.zeros((1, 1), np.int64))
    ReferenceLauncher()("ssd::Sample@1", [tensor, put(cuda, np.arange(4))], [output], 1)
    assert take(cuda, output).tolist() == [[1]]


def test_drafted_ids_come_out_in_the_targets_vocabulary(cuda: FakeCuda) -> None:
    logits, ids = np.eye(4, dtype=np.float32)[None], np.array([10, 11, 12, 13])
    output = put(cuda, np.zeros((1, 4), np.int64))
    ReferenceLauncher()("ssd::Sample@1", [put(cuda, logits), put(cuda, ids)], [output], 1)
    assert take(cuda, output).tolist() == [[10, 11, 12, 13]]


def test_a_layer_of_others_is_named(cuda: FakeCuda) -> None:
    assert cuda.blocks == {}
    with pytest.raises(BackendError, match="acme::Fuse@2 has no reference"):
        ReferenceLauncher()("acme::Fuse@2", [], [], 1)
