"""ssd::Verify from a TensorRT layer's enqueue down to its kernels, in their host form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from engines.errors import BackendError
from engines.tensors import DType
from plugins import tensorrt as plugins
from plugins.cuda.host import HostKernel
from plugins.launcher import KernelLauncher
from plugins.law.kernel import slices_of
from plugins.layer import DeviceTensor
from plugins.verify import launch
from plugins.verify.kernel import KERNEL
from plugins.verify.reference import verify
from tests.helpers.sampling_cases import as_float32, stored
from tests.plugins.fake_tensorrt import DataType, Desc, FakeTensorRT, TensorRTPhase

TYPES = {
    "float32": (DataType.FLOAT, DType.FLOAT32),
    "float16": (DataType.HALF, DType.FLOAT16),
    "uint16": (DataType.BF16, DType.BFLOAT16),
}


class HostLaunches:
    """A loaded kernel whose device is this process: addresses are those of numpy arrays."""

    def __init__(self, kernel: HostKernel) -> None:
        self.kernel = kernel
        self.launches: list[tuple[str, int, int, int]] = []

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        stream: int,
    ) -> None:
        self.launches.append((entry, num_blocks, num_threads, stream))
        self.kernel.launch(entry, values, num_blocks=num_blocks, num_threads=min(num_threads, 2))


@pytest.fixture(scope="module")
def compiled(load_host):
    return load_host(KERNEL.source, KERNEL.args)


def tensor(array: np.ndarray, dtype: DType) -> DeviceTensor:
    return DeviceTensor(array.ctypes.data, dtype, array.shape)


def run_layer(compiled, logits, drafts, num_draft):
    """Both outputs, by way of the layer that an engine holds."""
    trt = FakeTensorRT()
    launches = HostLaunches(compiled)
    plugins.register(trt, KernelLauncher({"ssd::Verify@1": launches}))
    layer = trt.registry.get_creator("Verify", "1", "ssd").create_plugin(
        "", [], TensorRTPhase.BUILD
    )
    vendor_type, _ = TYPES[logits.dtype.name]
    inputs = [
        Desc(logits.shape, vendor_type),
        Desc(drafts.shape, DataType.INT64),
        Desc(num_draft.shape, DataType.INT64),
    ]
    outputs = [np.full(num_draft.size, -9, np.int64) for _ in range(2)]
    descs = [Desc(each.shape, DataType.INT64) for each in outputs]
    scratch = np.full(layer.get_workspace_size(inputs, descs), 0xA5, np.uint8)
    layer.enqueue(
        inputs,
        descs,
        [each.ctypes.data for each in (logits, drafts, num_draft)],
        [each.ctypes.data for each in outputs],
        scratch.ctypes.data,
        7,
    )
    return outputs, launches.launches


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 4099), (3, 2, 50), (2, 17, 30)], ids=str)
def test_a_layer_gives_what_the_reference_gives(compiled, dtype, shape):
    """1,000 random cases over shapes and types: ties, -inf, drafts that are no ids."""
    rng = np.random.default_rng(sum(shape))
    for _ in range(5 if shape[-1] > 1000 else 110):
        values = np.round(rng.standard_normal(shape) * 2).astype(np.float32)
        values[rng.random(shape) < 0.1] = -np.inf
        logits = stored(values, dtype)
        drafts = as_float32(logits).argmax(-1)[:, :-1]
        drafts = np.where(
            rng.random(drafts.shape) < 0.8, drafts, rng.integers(-1, 60, drafts.shape)
        )
        num_draft = rng.integers(0, shape[1], shape[0])
        expected = verify(as_float32(logits), drafts, num_draft)
        found, launches = run_layer(compiled, logits, drafts, num_draft)
        np.testing.assert_array_equal(found, expected)
        assert {stream for *_, stream in launches} == {7}
        assert all(num_threads % 32 == 0 for _, _, num_threads, _ in launches)


def test_rows_without_a_choice_give_the_lowest_id(compiled):
    """numpy's argmax of nothing but -inf; any other id could lie outside the vocabulary."""
    logits = np.full((1, 2, 9), -np.inf, np.float32)
    found, _ = run_layer(compiled, logits, np.array([[0]]), np.array([1]))
    assert [each.tolist() for each in found] == [[1], [0]]


@pytest.mark.parametrize("vocab_size", [1, 32000, 262144])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_scratch_of_the_largest_shapes_does_for_smaller_ones(batch, vocab_size):
    """An engine lends what its largest shapes need; fewer rows have more slices each."""
    lent = launch.scratch_bytes([(batch, 17, vocab_size)])
    for rows in range(1, batch * 17 + 1):
        for size in (1, 2049, vocab_size):
            num_slices = slices_of(rows, min(size, vocab_size))
            assert rows * num_slices * launch.PARTIAL_BYTES <= lent


def test_a_layer_without_a_kernel_is_named():
    with pytest.raises(BackendError, match=r"acme::Fuse@2 has no kernel .* ssd::Verify@1"):
        KernelLauncher({"ssd::Verify@1": None})("acme::Fuse@2", [], [], 0, 0)
