"""Device sessions for callers that compute on the host: what their logits become there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engines.manifest import DRAFT, TARGET
from engines.tensors import DType
from plugins.layer import DeviceTensor
from runtime.backends.api import CallShape
from runtime.backends.blocking import BlockingSession
from runtime.backends.tensorrt.session import TensorRtSession
from runtime.backends.tensorrt.step import TensorRtStep
from runtime.device.cuda import current_stream
from runtime.workers.probe import measure_invariance
from tests.helpers.fake_cuda import LAZY
from tests.helpers.fake_tensorrt_toy import array_at
from tests.helpers.tensorrt_sessions import Bench, stream_of, view
from tests.helpers.toy_pair import tables


def narrowed(logits: np.ndarray, dtype: DType) -> np.ndarray:
    """As an engine of that precision would give them; bfloat16 as its bits."""
    if dtype is DType.BFLOAT16:
        return (logits.view(np.uint32) >> 16).astype(np.uint16)
    return logits.astype(np.float16)


def widened(logits: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 of the same value, said in another way than by the code under test."""
    if dtype is DType.BFLOAT16:
        pairs = np.stack([np.zeros_like(logits), logits], axis=-1)  # little end first
        return pairs.view(np.float32)[..., 0]
    return logits.astype(np.float32)


class NarrowSession:
    """A simulated session whose logits are narrowed on the GPU behind each call."""

    def __init__(self, bench: Bench, session: TensorRtSession, dtype: DType) -> None:
        self._bench, self._session, self._dtype = bench, session, dtype
        self._memory = bench.device().allocate("narrow logits", (2**16,), "u1")
        manifest = session.manifest
        outputs = tuple(
            replace(spec, dtype=dtype) if spec.name == "logits" else spec
            for spec in manifest.outputs
        )
        self.manifest = replace(manifest, outputs=outputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def prepare(self, shape: CallShape) -> NarrowStep:
        step = self._session.prepare(shape)
        return NarrowStep(self._bench, step, self._memory.address, self._dtype)


class NarrowStep:
    def __init__(self, bench: Bench, step: TensorRtStep, address: int, dtype: DType) -> None:
        self._bench, self._step = bench, step
        self.logits = DeviceTensor(address, dtype, step.logits.shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def enqueue(self) -> None:
        self._step.enqueue()
        wide, narrow = self._step.logits, self.logits
        kind = np.dtype(np.uint16 if narrow.dtype is DType.BFLOAT16 else np.float16)

        def compute() -> None:
            array_at(narrow.address, narrow.shape, kind)[...] = narrowed(view(wide), narrow.dtype)

        self._bench.cuda.kernel(self._bench.cuda.stream_of(current_stream().handle), compute)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_logits_of_half_precision_come_as_float32_and_are_judged(
    role: str, dtype: DType, tmp_path: Path
) -> None:
    """numpy has no bfloat16: each such bundle failed when it was loaded."""
    bench = Bench(tmp_path, order=LAZY)
    opened = bench.open(role)
    stream = stream_of(opened)
    session = BlockingSession(NarrowSession(bench, opened, dtype), bench.device(), num_slots=3)
    target, draft, ids = tables(1, draft_vocab=7)
    assert ids is not None
    row = widened(narrowed((target if role == TARGET else draft)[3, 5], dtype), dtype)
    scratch = session.manifest.kv.scratch_rows

    def run() -> Any:
        step = session.prepare(CallShape(0, 1, 2, 1))
        step.tokens[:] = [3, 5]
        step.positions[:] = [0, 1]
        step.write_at[:] = scratch
        step.logit_rows[:] = 1
        step.num_draft[:] = 0
        step.mask[:] = False
        step.mask[0, :, scratch : scratch + 2] = np.tri(2, dtype=bool)
        step.run()
        return step

    step = stream.call(run)
    assert step.logits.dtype == np.float32
    assert np.array_equal(step.logits[0, 0], row)
    best = int(row.argmax())
    assert (step.next[0] if role == TARGET else step.sample[0, 0]) == (
        best if role == TARGET else ids[best]
    )
    bench.close()
    assert bench.cuda.misuses == []


def test_an_engine_in_bfloat16_is_probed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    opened = bench.open(TARGET)
    narrow = NarrowSession(bench, opened, DType.BFLOAT16)
    session = BlockingSession(narrow, bench.device(), num_slots=3)
    found = stream_of(opened).call(lambda: measure_invariance(session, 5, 3))
    assert (found.min_tokens, found.varies_with) == (1, ())
    bench.close()
