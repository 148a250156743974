"""Bundles of compiled engines, loaded and run on simulated GPUs by a simulated TensorRT."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from engines.bundle import Bundle
from engines.errors import BundleIncompatibleError, DeviceError, MissingDependencyError
from engines.manifest import DRAFT, SCHEMA, TARGET, BundleManifest, Limits
from runtime.backends.tensorrt.vendor import Vendor
from runtime.devices import parse_devices
from runtime.loader import load_pair
from runtime.loading.hardware import Hardware
from runtime.placement import place_on_gpus
from runtime.request import Request
from runtime.resident.kernels import NAMES
from runtime.sampling.params import SamplingParams
from runtime.settings import Settings
from runtime.spec.fallback import Fallback
from tests.helpers.fake_cuda import EAGER, FakeCuda
from tests.helpers.fake_tensorrt_module import FakeTensorRt
from tests.helpers.fake_tensorrt_toy import SimulatedLauncher, write_toy_plan
from tests.helpers.simulated_gpu import host_kernel, kernels_of
from tests.helpers.toy_pair import plain, tables

LIMITS = Limits(max_len=96, max_batch=3, num_draft=3, max_branches=6)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [2] * 40]
LAWS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.0, seed=4, top_k=5),
]


class Machine:
    """Simulated GPUs, a simulated TensorRT, and a toy pair that it compiled."""

    def __init__(self, folder: Path, module: str) -> None:
        self.cuda = FakeCuda(EAGER, num_gpus=2, memory_bytes=2**32, with_calls=True)
        version = "11.4.0.106" if module == "tensorrt" else "1.7.1.116"
        self.trt = FakeTensorRt(self.cuda, module, version)
        self.hardware = Hardware(
            core=lambda: self.cuda,
            vendor=lambda _name: Vendor.of(self.trt),
            launcher=lambda _capability: SimulatedLauncher(self.cuda),
            kernels=kernels_of(self.cuda),
        )
        self.table, draft, ids = tables(1, draft_vocab=7)
        engines = {
            role: dataclasses.replace(
                write_toy_plan(
                    folder / role,
                    role,
                    table,
                    LIMITS,
                    builder=self.trt.builder,
                    vocab_map=vocab_map,
                    capabilities=("9.0",),
                ),
                schema=SCHEMA,
            )
            for role, table, vocab_map in ((TARGET, self.table, None), (DRAFT, draft, ids))
        }
        manifest = BundleManifest(
            schema=SCHEMA,
            name="toy",
            backend=engines[TARGET].backend,
            precision=engines[TARGET].precision,
            limits=LIMITS,
            has_draft=True,
            tokenizer="tokenizer.json",
            chat_template=None,
            special_tokens={},
            draft_figures=None,
            build_key=folder.name,
            rebuild="python -m export build --target toy --out toy",
            files=(),
        )
        self.bundle = Bundle(folder, manifest, engines[TARGET], engines[DRAFT])

    def settings(self, mode: str, device: str, share: float | None = None) -> Settings:
        placement = place_on_gpus(mode, parse_devices(device, share), (0, 1), None, has_draft=True)
        return Settings(placement, "coupled", 3, 6, 3, Fallback.ZERO, 1.0, None)

    def generate(self, mode: str, device: str, share: float | None = None) -> list[Request]:
        pair = load_pair(self.bundle, self.settings(mode, device, share), hardware=self.hardware)
        requests = [
            Request(prompt, law, 24, frozenset(), LIMITS.max_len)
            for prompt, law in zip(PROMPTS, LAWS, strict=True)
        ]
        try:
            pair.scheduler.run(requests)
        finally:
            pair.close()
        return requests


@pytest.fixture(params=["tensorrt", "tensorrt_rtx"])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Machine:
    for name in NAMES:  # into, or out of, the cache of all tests
        host_kernel(name)
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
    return Machine(tmp_path / "pair", request.param)


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
@pytest.mark.parametrize("device", ["cuda:0", "cuda:1,cuda:0"])
def test_compiled_engines_give_the_tables_own_tokens(
    machine: Machine, device: str, mode: str
) -> None:
    expected = [
        plain(machine.table, Request(prompt, law, 24, frozenset(), LIMITS.max_len)).generated
        for prompt, law in zip(PROMPTS, LAWS, strict=True)
    ]
    found = machine.generate(mode, device)
    assert [request.generated for request in found] == expected
    assert machine.cuda.misuses == []
    num_replays = len(machine.cuda.calls_of("Graph.launch"))
    assert bool(num_replays) == (machine.trt.__name__ == "tensorrt"), "RTX captures by itself"


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
def test_no_text_waits_for_a_first_run(machine: Machine, mode: str) -> None:
    """TensorRT-RTX compiles for seconds then: in a draft's work that is taken for a hang."""
    told: list[str] = []
    settings = machine.settings(mode, "cuda:0,cuda:1")
    pair: Any = load_pair(machine.bundle, settings, hardware=machine.hardware, tell=told.append)
    sessions = [pair.engines.target_session]
    if mode != "ar":
        sessions.append(pair.engines.draft_session)
    steps = [set(session._steps) for session in sessions]
    assert all(step.is_warm for session in sessions for step in session._steps.values())
    request = Request([1] * 40, LAWS[1], 24, frozenset(), LIMITS.max_len)
    expected = plain(machine.table, Request([1] * 40, LAWS[1], 24, frozenset(), LIMITS.max_len))
    pair.scheduler.run([request])
    assert [set(session._steps) for session in sessions] == steps
    assert request.generated == expected.generated
    pair.close()
    assert [line.split(":")[0] for line in told if "warming" in line] == [
        f"warming up the {session.manifest.role} engine" for session in sessions
    ]


@pytest.mark.parametrize("failing", ["target_stream", "draft_stream", "target_session"])
def test_whatever_fails_to_close_all_else_is_closed(
    machine: Machine, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that hangs would keep the other GPU's engine and memory for as long as the process."""
    settings = machine.settings("ssd", "cuda:0,cuda:1")
    pair: Any = load_pair(machine.bundle, settings, hardware=machine.hardware)
    engines = pair.engines
    order: list[str] = []

    def close_and_tell(name: str, close: Any) -> None:
        order.append(name)
        close()
        if name == failing:
            raise DeviceError("cuda:0 did not finish in 30 s")

    for name in ("target_stream", "draft_stream", "target_session", "draft_session"):
        part = getattr(engines, name)
        monkeypatch.setattr(part, "close", partial(close_and_tell, name, part.close))
    with pytest.raises(DeviceError, match="did not finish"):
        pair.close()
    assert set(order[:2]) == {"target_stream", "draft_stream"}, "engines may be in use before"
    assert set(order[2:]) == {"target_session", "draft_session"}
    assert pair._forget == []
    for session in (engines.target_session, engines.draft_session):
        assert session._loaded is None
    for stream in (engines.target_stream, engines.draft_stream):
        with pytest.raises(DeviceError, match="closed"):
            stream.launch(lambda: None)
    for device in engines._opened.values():
        with pytest.raises(DeviceError, match="closed"):
            device.create_stream("another")


def test_a_share_of_the_gpu_gives_each_engine_multiprocessors_of_its_own(
    machine: Machine,
) -> None:
    machine.generate("ssd", "cuda:0", 0.25)
    sizes = [
        len(call.detail.resources[0].numbers) for call in machine.cuda.calls_of("create_context")
    ]
    assert sizes == [96, 32]


def refused(machine: Machine, **changes: Any) -> str:
    hardware = dataclasses.replace(machine.hardware, **changes)
    with pytest.raises((BundleIncompatibleError, MissingDependencyError)) as caught:
        load_pair(machine.bundle, machine.settings("ssd", "cuda:0"), hardware=hardware)
    assert machine.cuda.streams == []
    return str(caught.value)


def test_another_version_and_another_gpu_are_refused_with_the_rebuild(machine: Machine) -> None:
    other = FakeTensorRt(machine.cuda, machine.trt.__name__, "9.9.9.9")
    message = refused(machine, vendor=lambda _name: Vendor.of(other))
    assert "9.9.9.9 is here" in message
    assert "rebuild: python -m export build" in message
    machine.cuda.capability = (8, 6)
    assert "this GPU has 8.6" in refused(machine)


def test_a_missing_package_is_named(machine: Machine) -> None:
    def missing(name: str) -> Vendor:
        raise MissingDependencyError("tensorrt", "tensorrt", f"running a {name} bundle")

    assert "ssd-trt[tensorrt]" in refused(machine, vendor=missing)
