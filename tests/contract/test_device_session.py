"""What every device session must do (``runtime.backends.api.DeviceSession``).

Through ``BlockingSession`` it passes the contract of host sessions; what only kernels see of it
(addresses that stay, nothing that waits) has tests of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from engines.border import graph_inputs, graph_outputs
from engines.manifest import DRAFT, TARGET, EngineManifest
from runtime.backends.api import CallShape, DeviceSession, Session
from runtime.backends.blocking import BlockingSession
from runtime.backends.device_host import HostDeviceSession
from runtime.backends.toy import ToySession
from runtime.device.api import Device
from runtime.device.cuda import CudaStream
from runtime.device.host import HostDevice
from tests.contract import test_session as host
from tests.helpers.fake_cuda import EAGER, LAZY
from tests.helpers.ort_sessions import OrtBench
from tests.helpers.tensorrt_sessions import LIMITS, Bench, OnStream, view
from tests.helpers.tiny_bundle import open_session, tiny_bundle
from tests.helpers.toy_pair import tables

KINDS = [
    *("toy", "onnxruntime", "tensorrt", "tensorrt-lazy", "tensorrt_rtx"),
    *("onnxruntime_cuda", "onnxruntime_cuda-lazy"),
]

BOTH = [
    (host.test_rows_are_equal_however_many_tokens_a_call_has, TARGET),
    (host.test_rows_are_equal_however_many_tokens_a_call_has, DRAFT),
    (host.test_growing_the_bound_rows_keeps_the_text_and_the_rounding, TARGET),
    (host.test_growing_the_bound_rows_keeps_the_text_and_the_rounding, DRAFT),
    (host.test_a_text_moved_to_another_slot_goes_on_with_the_same_bits, TARGET),
    (host.test_a_text_moved_to_another_slot_goes_on_with_the_same_bits, DRAFT),
]
ALONE = [
    host.test_slots_do_not_see_each_other,
    host.test_a_batch_of_slots_gives_each_row_what_it_gets_alone,
    host.test_branches_of_many_slots_in_one_call_are_those_of_each_alone,
    host.test_reduced_drafts_sample_in_target_ids,
    host.test_rows_beyond_the_built_ones_are_refused_with_figures,
    host.test_the_load_time_probe_accepts_the_engines_we_build,
]


def with_border(manifest: EngineManifest) -> EngineManifest:
    """A toy's manifest with the inputs and outputs that an engine's has."""
    role, kv = manifest.role, manifest.kv
    outputs = graph_outputs(role, kv, "L", manifest.model.output_vocab)
    return replace(manifest, inputs=graph_inputs(role, kv, "L"), outputs=outputs)


class Place:
    """Opens sessions of one kind, and runs work where they may be used."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._bench: Bench | OrtBench | None = None
        self._streams: dict[int, CudaStream] = {}
        if kind.startswith("tensorrt"):
            module, _, order = kind.partition("-")
            self._bench = Bench(folder, module, LAZY if order else EAGER)
        elif kind.startswith("onnxruntime_cuda"):
            self._bench = OrtBench(LAZY if kind.endswith("lazy") else EAGER)
        self._host = HostDevice()

    @property
    def device(self) -> Device:
        return self._host if self._bench is None else self._bench.device()

    def open(self, role: str) -> DeviceSession:
        if self._bench is not None:
            stream = self._bench.device().create_stream(f"{role} {len(self._streams)}")
            opened = self._bench.open(role, stream=stream)
            self._streams[id(opened)] = stream
            return opened
        if self.kind == "toy":
            target, draft, ids = tables(1, draft_vocab=7)
            is_target = role == TARGET
            table, known = (target, None) if is_target else (draft, ids)
            toy = ToySession(role, table, LIMITS, self._host, vocab_map=known)
            made = HostDeviceSession(toy)
            made.manifest = with_border(toy.manifest)
            return made
        return HostDeviceSession(open_session(tiny_bundle(), self._host, role))

    def blocking(self, role: str) -> Session:
        opened = self.open(role)
        made = BlockingSession(opened, self.device, num_slots=LIMITS.max_batch)
        return made if self._bench is None else OnStream(made, self._streams[id(opened)])

    def work(self, session: DeviceSession, run: Callable[[], None]) -> None:
        """Run in work of the session's stream, and wait for the device."""
        if self._bench is None:
            run()
            return
        stream = self._streams[id(session)]
        stream.launch(run)
        stream.sync()

    @property
    def calls(self) -> list[str]:
        """The CUDA calls so far that allocate or wait."""
        if self._bench is None:
            return []
        return [call.name for call in self._bench.cuda.calls_of("allocate", "sync", "Device.sync")]

    def close(self) -> None:
        if self._bench is not None:
            self._bench.close()
            assert self._bench.cuda.misuses == []
        self._host.close()


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(("check", "role"), BOTH)
def test_it_keeps_the_contract_of_host_sessions(place: Place, check: Callable, role: str) -> None:
    check(place.blocking, role)


@pytest.mark.parametrize("check", ALONE)
def test_it_keeps_the_rest_of_that_contract(place: Place, check: Callable) -> None:
    check(place.blocking)


@pytest.mark.parametrize("role", [TARGET, DRAFT])
def test_a_step_is_made_once_and_has_dense_tensors_of_its_shape(place: Place, role: str) -> None:
    session = place.open(role)
    steps = []

    def prepare() -> None:
        steps.extend(session.prepare(CallShape(0, 2, 2, 2)) for _ in range(2))

    place.work(session, prepare)
    assert steps[0] is steps[1]
    step, rows = steps[0], session.num_rows
    vocab = session.manifest.model.output_vocab
    assert step.tokens.shape == step.positions.shape == step.logit_rows.shape == (2, 2)
    assert step.write_at.shape == step.num_draft.shape == (2,)
    assert step.mask.shape == (2, 1, 2, rows)
    assert step.logits.shape == (2, 2, vocab)
    assert len(session.caches) == 2 * session.manifest.kv.num_layers


def test_an_input_keeps_what_was_written_to_it(place: Place) -> None:
    """The lookup of one round fills the call of the next; a prompt's chunk comes in between."""
    session = place.open(TARGET)

    def check() -> None:
        first = session.prepare(CallShape(0, 1, 2, 2))
        second = session.prepare(CallShape(0, 1, 16, 1))
        for tensor in (first.tokens, first.positions, first.write_at, first.num_draft):
            view(tensor)[...] = 7
        view(first.logit_rows)[...] = [0, 1]
        for tensor in (second.tokens, second.positions, second.write_at, second.num_draft):
            view(tensor)[...] = 3
        for tensor in (first.tokens, first.positions, first.write_at, first.num_draft):
            assert (view(tensor) == 7).all()
        assert view(first.logit_rows).tolist() == [[0, 1]]

    place.work(session, check)


def test_copies_share_no_outputs(place: Place) -> None:
    session = place.open(DRAFT)
    spans = []

    def prepare() -> None:
        for copy in range(LIMITS.num_draft + 1):
            logits = session.prepare(CallShape(0, 1, 6, 6, copy=copy)).logits
            size = math.prod(logits.shape) * logits.dtype.itemsize
            spans.append((logits.address, logits.address + size))

    place.work(session, prepare)
    spans.sort()
    for (_, end), (start, _) in pairwise(spans):
        assert end <= start


def test_calls_allocate_nothing_and_wait_for_nothing(place: Place) -> None:
    """On a GPU either would hold up a round, and break a capture."""
    session = place.open(TARGET)

    def calls() -> None:
        for width in (1, 2, 5, 16, 5, 16):
            step = session.prepare(CallShape(0, 1, width, 1 if width == 16 else width))
            view(step.positions)[0] = range(width)
            view(step.logit_rows)[...] = 0
            view(step.mask)[...] = np.tri(width, session.num_rows, dtype=bool)
            step.enqueue()

    before = len(place.calls)
    place.work(session, calls)
    assert place.calls[before:] == []


def test_closing_twice_is_closing_once(place: Place) -> None:
    session = place.open(TARGET)
    session.close()
    session.close()
