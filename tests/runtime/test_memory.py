"""Rounds neither allocate cache-sized memory nor let the process grow."""

from __future__ import annotations

import tracemalloc

import pytest

from export.build.build import build
from export.build.options import BuildOptions
from runtime.backends.api import CallShape
from runtime.device.host import HostDevice
from runtime.kv.layout import SlotLayout
from runtime.loader import LoadedPair
from runtime.placement import Placement
from runtime.request import Request
from runtime.sampling.params import SamplingParams
from runtime.workers.calls import fill_trunk
from tests.helpers.checkpoints import make_llama
from tests.helpers.memory import resident_bytes
from tests.helpers.tiny_bundle import open_session, tiny_bundle

MEGABYTE = 2**20


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_a_call_allocates_no_cache_sized_memory(tmp_path, num_tokens):
    """67 MB of caches are bound; a copy of any layer's part would show as 17 MB."""
    make_llama(
        tmp_path / "target",
        hidden=64,
        heads=8,
        kv_heads=4,
        head_dim=64,
        intermediate=64,
        max_position=8192,
    )
    options = BuildOptions(
        str(tmp_path / "target"), out=tmp_path / "b", precision="fp32", max_len=8192, max_batch=2
    )
    bundle = build(options).bundle
    device = HostDevice()
    session = open_session(bundle, device)
    layout = SlotLayout(bundle.target.kv, 0)
    session.bind_rows(bundle.target.kv.rows)
    assert session.kv_buffer.nbytes > 64 * MEGABYTE
    session.kv_buffer.array[:] = 0  # touch every page: they count from here on

    def run() -> None:
        step = session.prepare(CallShape(0, 2, num_tokens, num_tokens))
        for slot in range(2):
            fill_trunk(step, slot, layout, 8000, [1] * num_tokens)
            step.logit_rows[slot] = range(num_tokens)
            step.num_draft[slot] = 0
        step.run()

    before = resident_bytes()
    for _ in range(5):
        run()
    assert resident_bytes() - before < 12 * MEGABYTE
    device.close()


@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_two_thousand_rounds_do_not_grow_the_process(mode):
    bundle = tiny_bundle(max_batch=1)
    placement = Placement(mode, (0,), (0,))
    pair = LoadedPair(bundle, placement, verify="coupled", num_draft=4, num_branches=6)

    def rounds(count: int) -> None:
        done = 0
        while done < count:
            params = SamplingParams(temperature=1.0, seed=done)
            request = Request([1, 2, 3], params, 150, frozenset(), 160)
            done += pair.scheduler.run([request]).num_rounds

    try:
        rounds(300)
        tracemalloc.start()
        held_before, _ = tracemalloc.get_traced_memory()
        resident_before = resident_bytes()
        rounds(2000)
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert resident_bytes() - resident_before < 8 * MEGABYTE
        assert held - held_before < MEGABYTE / 2
        assert peak - held_before < 2 * MEGABYTE
    finally:
        pair.close()
