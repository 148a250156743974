"""The parts of the check without a GPU: on a simulated one, on the CPU, and over stand-ins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engines.errors import DeviceError, MissingDependencyError
from plugins.cuda import host, registry
from plugins.cuda.kernel import Kernel
from runtime.device.cuda import CudaDevice, current_stream
from runtime.llm import LLM
from runtime.sampling.params import SamplingParams
from tests.gpu import contract, generation, kernels, replay
from tests.gpu.generation import MODES, PROMPTS, disagreement
from tests.gpu.parts import PARTS, Options
from tests.gpu.report import Outcome
from tests.helpers.fake_cuda import LAZY, FakeCuda
from tests.helpers.simulated_gpu import simulated_gpus
from tests.helpers.tiny_bundle import tiny_bundle

SMALL = ("lookup", "fork", "chain", "put", "take", "kv_commit", "branch_mask")


# Replay: the real part, on a simulated GPU that runs the kernels' host form. -----------------


@dataclass
class OnSimulatedGpu:
    """A loaded kernel that enqueues its host form on a simulated stream."""

    cuda: FakeCuda
    kernel: Kernel

    def __post_init__(self) -> None:
        self.loaded = host.load(self.kernel.source, self.kernel.args)

    def launch(self, entry, values, *, num_blocks, num_threads, stream) -> None:
        del num_threads
        assert stream == int(current_stream().handle)
        run = partial(self.loaded.launch, entry, values, num_blocks=num_blocks, num_threads=1)
        self.cuda.kernel(current_stream(), run)


@contextmanager
def simulated() -> Iterator[tuple[FakeCuda, CudaDevice]]:
    cuda = FakeCuda(LAZY, with_calls=True)
    device = CudaDevice(core=cuda)
    yield cuda, device
    device.close()
    assert cuda.misuses == []


def some(name: str) -> Kernel:
    kernel = registry.kernel(name)
    return replace(kernel, trials=kernel.trials[:2])


def test_replay_launches_captures_and_replays_on_our_own_streams() -> None:
    with simulated() as (cuda, device):
        load = partial(OnSimulatedGpu, cuda)
        cases = replay.check_kernels(device, list(map(some, SMALL)), load, budget_s=600)
        assert [case for case in cases if case.outcome is not Outcome.PASSED] == []
        assert {case.name.partition(":")[0] for case in cases} == set(SMALL)
        assert len(cuda.calls_of("begin_building")) == len(cases)
        del cases


class Careless(OnSimulatedGpu):
    """Launches nothing in a capture: the replay does nothing."""

    def launch(self, entry, values, **grid) -> None:
        if not self.cuda.is_capturing_anywhere():
            super().launch(entry, values, **grid)


def test_a_replay_that_does_nothing_is_found() -> None:
    with simulated() as (cuda, device):
        load = partial(Careless, cuda)
        found = replay.check_kernels(device, [some("fork")], load, budget_s=600)
        assert {each.outcome for each in found} == {Outcome.FAILED}
        assert "first replay: " in found[0].reason


def test_a_kernel_that_does_not_load_fails_its_trials_and_no_others() -> None:
    with simulated() as (cuda, device):

        def load(kernel: Kernel) -> OnSimulatedGpu:
            if kernel.name == "take":
                raise DeviceError("no image for this GPU")
            return OnSimulatedGpu(cuda, kernel)

        found = replay.check_kernels(device, [some("take"), some("put")], load, budget_s=600)
        assert [each.outcome for each in found] == [Outcome.FAILED] * 2 + [Outcome.PASSED] * 2
        assert "no image for this GPU" in found[0].reason


def test_replay_leaves_out_what_there_is_no_time_for() -> None:
    with simulated() as (cuda, device):
        now = iter([0.0, 1.0, 9.0, 9.0, 9.0])
        load = partial(OnSimulatedGpu, cuda)
        found = replay.check_kernels(device, [some("put")], load, 5.0, clock=lambda: next(now))
        assert [each.outcome for each in found] == [Outcome.PASSED, Outcome.LEFT_OUT]


# Kernels: what is made of the measurements. ---------------------------------------------------


def test_measurements_become_cases_with_their_bandwidth() -> None:
    measured = {
        "kernel": "verify",
        "label": "B=1",
        "errors": (),
        "kernel_s": 2e-6,
        "torch_s": None,
        "bytes_per_s": 1e12,
        "num_bytes": 2_000_000,
        "floor_s": 4e-7,
    }
    wrong = {**measured, "errors": ("launched: x", "in torch: y"), "kernel_s": None}
    found = {"measured": [measured, wrong], "left_out": ["sample B=2"], "fault": "Xid 79"}
    cases = kernels.cases_of(found)
    assert [each.outcome.value for each in cases] == ["passed", "failed", "left out", "failed"]
    assert cases[0].name == "verify: B=1"
    assert cases[0].figures["bytes_per_s"] == 1e12
    assert cases[1].reason == "launched: x; in torch: y"
    assert cases[3].reason == "Xid 79"


# Contract: what pytest is asked. ----------------------------------------------------------------


def test_the_contract_part_names_suites_that_are_there() -> None:
    """A suite that moved would be run by nobody."""
    command = contract.command(Path("out.xml"))
    suites = [each for each in command if each.endswith(".py")]
    assert len(suites) >= 4
    assert "tests/contract/test_device_capture.py" in suites
    assert "tests/runtime/device/test_cuda_gpu.py" in suites
    assert command[:3] == [sys.executable, "-m", "pytest"]
    for each in contract.SUITES:
        assert list(contract.ROOT.glob(each)), each


def test_every_part_is_a_module_with_what_it_needs_named() -> None:
    assert list(PARTS) == ["contract", "replay", "generation", "kernels"]
    for part in PARTS.values():
        assert "cuda.core" in part.needs
        assert (contract.ROOT / "tests" / "gpu" / f"{part.name}.py").is_file()


# Generation. ------------------------------------------------------------------------------------


def test_without_a_bundle_generation_is_skipped_by_name() -> None:
    [case] = generation.run(Options())
    assert (case.outcome, case.reason) == (
        Outcome.SKIPPED,
        "no bundle: `make demo`, or --bundle DIR",
    )


def test_a_real_bundle_agrees_with_itself_and_the_cpu() -> None:
    """The whole part, on a simulated GPU: all modes, all laws, and the comparison."""
    bundle = tiny_bundle().path
    hardware, cuda, _ = simulated_gpus()
    cases = generation.run(Options((bundle,)), partial(LLM.open, hardware=hardware))
    assert cuda.misuses == []
    assert [each.name for each in cases] == [
        *(f"{bundle.name}: {mode}" for mode in MODES),
        f"{bundle.name}: as on the CPU",
    ]
    assert [each for each in cases if each.outcome is not Outcome.PASSED] == []
    assert cases[2].figures["tokens_s"] > 0
    assert cases[2].figures["hit_rate"] is not None
    assert cases[3].figures == {"equal_texts": len(PROMPTS), "texts": len(PROMPTS)}


class FakeLlm:
    """Texts as told: ``token`` over and over."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __enter__(self) -> FakeLlm:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def encode(self, text: str) -> list[int]:
        return [len(text)]

    def generate(self, _prompt: Any, _law: Any, *, max_tokens: int, **_: Any) -> SimpleNamespace:
        logprobs = [likeliest(-0.1, {self.token: -0.1, 3: -0.3, 4: -9.0})] * max_tokens
        stats = SimpleNamespace(
            num_tokens=max_tokens, decode_s=1.0, acceptance_length=1.5, hit_rate=0.5
        )
        tokens = (self.token,) * max_tokens
        return SimpleNamespace(token_ids=tokens, logprobs=logprobs, stats=stats)

    def generate_batch(self, prompts: Any, law: Any, **options: Any) -> list[SimpleNamespace]:
        return [self.generate(each, law, **options) for each in prompts]


def likeliest(logprob: float, top: dict[int, float]) -> SimpleNamespace:
    return SimpleNamespace(
        logprob=logprob, top_ids=np.array(list(top)), top_logprobs=np.array(list(top.values()))
    )


def outcomes(tokens: dict[tuple[str, str], int]) -> dict[str, Outcome]:
    """Of a part whose texts are these tokens, by device and mode."""
    bundle = tiny_bundle().path

    def open_llm(_path: Path, *, device: str, mode: str) -> FakeLlm:
        return FakeLlm(tokens.get((device, mode), 2))

    cases = generation.run(Options((bundle,)), open_llm)
    return {each.name.partition(": ")[2]: each.outcome for each in cases}


def test_a_mode_with_other_tokens_fails() -> None:
    """Even one, even a near tie: on one engine there is no rounding to blame."""
    found = outcomes({("cuda:0", "ssd"): 3})
    assert found["ssd"] is Outcome.FAILED
    assert found["sd"] is found["ar"] is found["as on the CPU"] is Outcome.PASSED


def test_the_cpu_may_differ_by_a_near_tie_only() -> None:
    near = dict.fromkeys((("cuda:0", mode) for mode in MODES), 3)
    assert outcomes(near)["as on the CPU"] is Outcome.PASSED
    far = dict.fromkeys(near, 4)
    assert outcomes(far)["as on the CPU"] is Outcome.FAILED
    unknown = dict.fromkeys(near, 5)
    assert outcomes(unknown)["as on the CPU"] is Outcome.FAILED


def test_a_text_that_ends_elsewhere_is_no_near_tie() -> None:
    expected = FakeLlm(2).generate([1], SamplingParams(), max_tokens=4)
    assert disagreement([2, 2, 2, 2], expected) is None
    assert "ends after 3 tokens" in (disagreement([2, 2, 2], expected) or "")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MissingDependencyError("tensorrt", "tensorrt", "this bundle"), Outcome.SKIPPED),
        (DeviceError("out of memory"), Outcome.FAILED),
    ],
)
def test_a_bundle_that_cannot_be_opened(error: Exception, outcome: Outcome) -> None:
    """Without its vendor's package it is skipped by name; else it has failed."""

    def open_llm(*_: object, **__: object) -> FakeLlm:
        raise error

    cases = generation.run(Options((Path("nowhere"),)), open_llm)
    assert {each.outcome for each in cases} == {outcome}
    assert len(cases) == len(MODES)
