"""Run in a process of its own: polygraphy's command line with a GPU that is host memory.

    python polygraphy_process.py BUNDLE PLAN run PLAN --trt ...

The plan's layers are those that polygraphy's start has registered; all else that it computes,
ONNX Runtime does with the target's graph in BUNDLE. Prints a line for each layer that ran.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt_rtx as trt

from engines.bundle import open_bundle
from engines.manifest import TARGET
from engines.profiles import ShapeProfile, Span
from plugins.verify.tensorrt import SIGNATURE
from tests.helpers.fake_gpu import FakeContext, FakeCuda, FakeEngine

PROFILE = ShapeProfile("verify", Span(1, 1, 1), Span(1, 5, 5), Span(1, 5, 5), Span(64, 64, 128))
"""What the README's conversion asks for."""
CHOICES = ("accepted", "next")


class Engine(FakeEngine):
    def create_execution_context(self) -> FakeContext:
        return Context(self)


class Context(FakeContext):
    """Its Verify layer is the registered one."""

    def execute_async_v3(self, stream: int) -> bool:
        super().execute_async_v3(stream)
        rows, tokens = self._array("logit_rows"), self._array("tokens")
        drafts = np.take_along_axis(tokens, rows, axis=1)[:, 1:].copy()
        logits = (*rows.shape, self.engine.manifest.model.output_vocab)
        inputs = [
            _desc(trt.float32, logits),
            _desc(trt.int64, drafts.shape),
            _desc(trt.int64, (1,)),
        ]
        addresses = [self.addresses["logits"], drafts.ctypes.data, self.addresses["num_draft"]]
        outputs = [_desc(trt.int64, (1,)), _desc(trt.int64, (1,))]
        expected = [self._array(name).copy() for name in CHOICES]
        for name in CHOICES:
            self._array(name)[...] = -1
        creator = trt.get_plugin_registry().get_creator("Verify", "1", "ssd")
        layer = creator.create_plugin("", trt.PluginFieldCollection([]), trt.TensorRTPhase.BUILD)
        written = [self.addresses[name] for name in CHOICES]
        layer.enqueue(inputs, outputs, addresses, written, 0, stream)
        for name, value in zip(CHOICES, expected, strict=True):
            np.testing.assert_array_equal(self._array(name), value)
        sys.stdout.write(f"{SIGNATURE.full_name} ran on {list(logits)}\n")
        return True

    def _array(self, name: str) -> np.ndarray:
        shape = (1,) if name in CHOICES else self.shapes[name]
        return self._memory(name, shape, np.dtype(np.int64))


def _desc(dtype: Any, dims: tuple[int, ...]) -> Any:
    desc = trt.PluginTensorDesc()
    desc.type, desc.dims, desc.format = dtype, trt.Dims(dims), trt.TensorFormat.LINEAR
    return desc


def run(bundle: Path, plan: Path, command: list[str]) -> int:
    opened = open_bundle(bundle)
    facts = opened.target.plan
    assert facts is not None
    manifest = replace(opened.target, plan=replace(facts, profiles=(PROFILE,)))

    class Runtime:
        def __init__(self, _logger: object) -> None: ...

        def deserialize_cuda_engine(self, content: bytes) -> FakeEngine:
            assert content == plan.read_bytes()
            return Engine(manifest, opened.model_path(TARGET), trt)

    trt.Runtime, trt.ICudaEngine = Runtime, FakeEngine
    from polygraphy.cuda import cuda
    from polygraphy.tools import main

    cuda.G_CUDA = FakeCuda()
    status: int = main(command)
    return status


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
