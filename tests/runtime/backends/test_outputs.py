"""Output memory: one block a copy for calls of all shapes, and never another copy's."""

from __future__ import annotations

import numpy as np
import pytest

from engines.manifest import DRAFT, TARGET, Limits
from runtime.backends.api import CallShape, Session
from runtime.backends.outputs import Outputs
from runtime.backends.toy import ToySession, toy_manifest
from runtime.device.host import HostDevice
from tests.helpers.tiny_bundle import open_session, tiny_bundle
from tests.helpers.toy_pair import tables

LIMITS = Limits(max_len=160, max_batch=3, num_draft=4, max_branches=6)


@pytest.fixture(params=["toy", "onnxruntime"])
def session(request):
    device = HostDevice()
    if request.param == "toy":
        yield ToySession(TARGET, tables(1)[0], LIMITS, device)
    else:
        yield open_session(tiny_bundle(), device)
    device.close()


def test_calls_of_all_shapes_share_the_memory_of_their_logits(session: Session) -> None:
    """With logits of their own the shapes of a batch of 16 would hold 400 MB at 49k ids."""
    addresses = {
        session.prepare(CallShape(0, slots, width, width)).logits.ctypes.data
        for slots in (1, 2, 3)
        for width in range(1, LIMITS.num_draft + 2)
    }
    assert len(addresses) == 1


def test_blocks_are_told_apart_by_copy_and_name_and_grow_for_larger_calls() -> None:
    outputs = Outputs(toy_manifest(DRAFT, 8, 8, LIMITS), 3)
    arrays = [
        outputs.array(copy, name, (3, 4), np.int64)
        for copy in (0, 1)
        for name in ("next", "sample")
    ]
    for value, array in enumerate(arrays):
        array[:] = value
    assert [set(array.ravel().tolist()) for array in arrays] == [{0}, {1}, {2}, {3}]
    large = outputs.array(0, "next", (5, 7), np.int64)
    assert large.shape == (5, 7)
    large[:] = 9
    assert set(arrays[0].ravel().tolist()) == {0}  # a step made before keeps its own
    assert outputs.array(0, "next", (3, 4), np.int64).base is large.base


def test_the_usual_calls_never_make_a_block_anew() -> None:
    """A second block beside the first would be memory that nothing counted."""
    for copy, width in ((0, LIMITS.num_draft + 1), (1, LIMITS.max_branches)):
        outputs = Outputs(toy_manifest(DRAFT, 8, 8, LIMITS), 3)
        first = outputs.array(copy, "logits", (1, 1, 8), np.float32)
        assert outputs.array(copy, "logits", (3, width, 8), np.float32).base is first.base
