"""Bundles opened on GPUs, end to end over simulated ones: the tokens are those of the CPU."""

from __future__ import annotations

import dataclasses
import gc
import random
import threading
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engines.bundle import Bundle
from engines.errors import (
    BackendError,
    CapacityError,
    DeviceError,
    MissingDependencyError,
    UsageError,
)
from export.build.build import build
from export.build.options import BuildOptions
from runtime.grammar import Grammar
from runtime.llm import LLM
from runtime.loading import probing
from runtime.memo import Memo
from runtime.memory_plan import MIB
from runtime.resident.kernels import NAMES
from runtime.sampling.params import SamplingParams
from runtime.workers.probe import WITH_ROWS, WITH_TEXTS, Invariance
from tests.helpers.checkpoints import make_llama
from tests.helpers.fake_cuda import EAGER, LAZY, FakeCuda
from tests.helpers.fake_ort_gpu import FakeOrt
from tests.helpers.session_folder import session_folder
from tests.helpers.simulated_gpu import host_kernel, simulated_gpus
from tests.helpers.tiny_bundle import tiny_bundle

PROMPTS: list[list[int]] = [[5, 6, 7], list(range(30)), [9] * 70, [11, 12]]
LAWS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.0, seed=4, top_k=20, top_p=0.9),
    SamplingParams(),
]


@pytest.fixture(autouse=True)
def _own_memo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What these GPUs were found to be is no news for the machine that tests run on."""
    for name in NAMES:  # into, or out of, the cache of all tests
        host_kernel(name)
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))


@cache
def agreeing_bundle() -> Bundle:
    """A pair whose draft is its target, so that nearly every outcome is among the prepared."""
    folder = session_folder("agreeing-bundle")
    make_llama(folder / "model", hidden=64, intermediate=128, tied=True, seed=3)
    return build(
        BuildOptions(
            target=str(folder / "model"),
            draft=str(folder / "model"),
            out=folder / "bundle",
            precision="fp32",
            max_len=160,
            max_batch=3,
            num_draft=3,
            max_branches=6,
        )
    ).bundle


def answers(bundle: Bundle, **options: Any) -> list[tuple[int, ...]]:
    with LLM.open(bundle.path, max_batch=3, **options) as llm:
        found = llm.generate_batch(PROMPTS, LAWS, max_tokens=30, min_tokens=4)
    return [completion.token_ids for completion in found]


@cache
def expected(name: str) -> list[tuple[int, ...]]:
    return answers(BUNDLES[name](), mode="ar")


BUNDLES = {"agreeing": agreeing_bundle, "strange": tiny_bundle}


def require_freed(cuda: FakeCuda) -> None:
    """After everything that used the GPUs is gone."""
    gc.collect()  # an engine's error leads to its streams, by its traceback
    for thread in threading.enumerate():
        if thread.name.startswith("stream cuda"):
            thread.join(30.0)
    assert cuda.streams == []
    assert cuda.memory_free == [cuda.memory_bytes] * cuda.num_gpus


@pytest.mark.parametrize("mode", ["ar", "sd", "ssd"])
@pytest.mark.parametrize("device", ["cuda:0", "cuda:0,cuda:1", "cuda:1,cuda:0", "cuda:1,cpu"])
@pytest.mark.parametrize("bundle", BUNDLES)
def test_every_placement_and_mode_gives_the_cpus_tokens(
    bundle: str, device: str, mode: str
) -> None:
    hardware, cuda, _ = simulated_gpus(num_gpus=2)
    found = answers(BUNDLES[bundle](), mode=mode, device=device, hardware=hardware)
    assert found == expected(bundle)
    assert cuda.misuses == []
    require_freed(cuda)


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize(
    ("device", "has_link"),
    [("cuda:0,cuda:1", True), ("cuda:0,cuda:1", False), ("cuda:0,cpu", True)],
)
def test_no_order_that_events_allow_changes_the_tokens(
    device: str, has_link: bool, seed: int | None
) -> None:
    """Two GPUs, over their link or through the host: a missing event would show."""
    order = LAZY if seed is None else random.Random(seed)
    cuda = FakeCuda(order, num_gpus=2, memory_bytes=2**32, has_link=has_link)
    hardware, _, _ = simulated_gpus(cuda)
    found = answers(agreeing_bundle(), mode="ssd", device=device, hardware=hardware)
    assert found == expected("agreeing")
    assert cuda.misuses == []


def test_hits_are_counted_and_the_draft_prepares_them() -> None:
    hardware, _, _ = simulated_gpus(num_gpus=2)
    with LLM.open(
        agreeing_bundle().path, mode="ssd", device="cuda:0,cuda:1", hardware=hardware, max_batch=1
    ) as llm:
        stats = llm.generate([5, 6, 7], max_tokens=60).stats
    assert stats.num_hits is not None
    assert stats.num_hits > 5
    assert stats.num_rounds < 40


def opened_streams(device: str, **options: Any) -> dict[str, Any]:
    """Of each stream by its name: the GPU and the options that it was created with."""
    cuda = FakeCuda(EAGER, num_gpus=2, memory_bytes=2**32, with_calls=True)
    hardware, _, _ = simulated_gpus(cuda)
    with LLM.open(tiny_bundle().path, mode="ssd", device=device, hardware=hardware, **options):
        return {call.thread: call for call in cuda.calls_of("create_stream")}


def test_the_targets_work_goes_first_on_a_gpu_that_both_share() -> None:
    calls = opened_streams("cuda:0")
    priority = {name: call.detail.priority for name, call in calls.items() if "memory" not in name}
    target = next(value for name, value in priority.items() if "target" in name)
    draft = next(value for name, value in priority.items() if "draft" in name)
    assert target == -5
    assert not draft
    calls = opened_streams("cuda:0,cuda:1")
    assert all(not call.detail.priority for call in calls.values())


def test_what_is_loaded_is_told_with_its_memory_first() -> None:
    hardware, _, _ = simulated_gpus()
    told: list[str] = []
    LLM.open(
        tiny_bundle().path, mode="ssd", device="cuda:0", hardware=hardware, tell=told.append
    ).close()
    assert told[0].startswith("memory on cuda:0 for 3 at once: ")
    assert "of 4.0 GiB free" in told[0]


def test_loading_keeps_to_its_memory_plan() -> None:
    """Exact items are what is allocated; estimates leave room for the rest."""
    hardware, cuda, _ = simulated_gpus()
    told: list[str] = []
    with LLM.open(
        tiny_bundle().path, mode="ssd", device="cuda:0", hardware=hardware, tell=told.append
    ) as llm:
        used = cuda.memory_bytes - cuda.memory_free[0]
        plan = llm.memory_plan
    [gpu] = [each for each in plan.devices if each.device == "cuda:0"]
    # The simulated module keeps its weights and activations elsewhere.
    elsewhere = ("weights", "activations", "vendor libraries")
    planned = sum(item.num_bytes for item in gpu.items if item.what not in elsewhere)
    assert 0.5 * planned < used < 1.2 * planned + MIB


def test_what_does_not_fit_is_refused_before_anything_is_loaded() -> None:
    hardware, cuda, ort = simulated_gpus(FakeCuda(EAGER, memory_bytes=8 * MIB))
    with pytest.raises(CapacityError, match=r"cuda:0 has 8.0 MiB free, .* are needed for 3"):
        LLM.open(tiny_bundle().path, mode="ssd", device="cuda:0", hardware=hardware)
    assert ort.sessions == []
    assert cuda.memory_free == [8 * MIB]


def test_a_gpu_that_is_not_there_is_told() -> None:
    hardware, cuda, _ = simulated_gpus(num_gpus=1)
    with pytest.raises(DeviceError, match=r"cuda:1.*nvidia-smi -L"):
        LLM.open(tiny_bundle().path, device="cuda:0,cuda:1", hardware=hardware)
    assert cuda.streams == []


def test_a_refused_engine_leaves_nothing_behind() -> None:
    cuda = FakeCuda(EAGER, memory_bytes=2**32)
    ort = FakeOrt(cuda)
    ort.nodes_on_cpu = ["TensorScatter"]
    hardware, _, _ = simulated_gpus(cuda, ort)
    with pytest.raises(BackendError, match="TensorScatter"):
        LLM.open(tiny_bundle().path, mode="ssd", device="cuda:0", hardware=hardware)
    require_freed(cuda)
    assert cuda.misuses == []


def test_the_probe_is_asked_once_a_gpu_and_refuses_an_engine_that_is_not_exact(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    asked: list[object] = []

    def probe(_session: object, num_tokens: int, num_slots: int) -> Invariance:
        asked.append((num_tokens, num_slots))
        return Invariance(min_tokens=1)

    monkeypatch.setattr(probing, "measure_invariance", probe)
    for _ in range(2):
        hardware, _, _ = simulated_gpus()
        LLM.open(tiny_bundle().path, mode="ar", device="cuda:0", hardware=hardware).close()
    assert asked == [(5, 3)]
    [key] = Memo(tmp_path)._read()
    assert "onnxruntime-gpu 1.31.0 on " in key

    def refuse(*_: object) -> Invariance:
        raise BackendError("the target's rows depend on each other")

    monkeypatch.setattr(probing, "measure_invariance", refuse)
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "other"))
    hardware, cuda, _ = simulated_gpus()
    with pytest.raises(BackendError, match="depend on each other"):
        LLM.open(tiny_bundle().path, mode="ar", device="cuda:0", hardware=hardware)
    require_freed(cuda)


@pytest.mark.parametrize("varies_with", [(), (WITH_TEXTS, WITH_ROWS)])
def test_an_engine_that_rounds_by_width_is_padded_in_every_mode(
    varies_with: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So plain decoding makes the calls that verification makes. What is left is in the note, and
    both are remembered."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path))
    asked: list[object] = []

    def probe(*_: object) -> Invariance:
        asked.append(None)
        return Invariance(4, varies_with)

    monkeypatch.setattr(probing, "measure_invariance", probe)
    for mode in ("ar", "ssd"):
        hardware, _, ort = simulated_gpus()
        with LLM.open(
            agreeing_bundle().path, mode=mode, device="cuda:0", hardware=hardware, max_batch=3
        ) as llm:
            num_loading = len(ort.runs)
            found = llm.generate_batch(PROMPTS, LAWS, max_tokens=30, min_tokens=4)
            assert (llm.note is None) == (not varies_with)
        assert [each.token_ids for each in found] == expected("agreeing")
        target = ort.sessions[0].options["user_compute_stream"]
        widths = {
            run.shapes["tokens"][1]
            for run in ort.runs[num_loading:]
            if run.stream == int(target) and run.shapes["tokens"][1] < 16
        }
        assert widths == {4}
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"trace": True}, "--trace with --device cuda:0"),
        ({"verify": "ratio"}, "--verify ratio"),
        ({"fallback": "lookup", "mode": "ssd"}, "--fallback lookup"),
        ({"draft_sm_share": 0.25}, "--draft-sm-share"),
        ({"tensor_parallel": 2}, "--tensor-parallel 2"),
    ],
)
def test_what_gpus_do_not_do_is_refused_before_anything_is_loaded(
    options: dict[str, Any], words: str
) -> None:
    hardware, cuda, _ = simulated_gpus()
    with pytest.raises(UsageError, match=words):
        LLM.open(
            tiny_bundle().path, **{"mode": "ar", "device": "cuda:0", **options}, hardware=hardware
        )
    assert cuda.streams == []


@pytest.mark.parametrize(
    ("params", "options", "name"),
    [
        (SamplingParams(repetition_penalty=1.1), {}, "repetition_penalty"),
        (SamplingParams(frequency_penalty=0.1), {}, "frequency_penalty"),
        (SamplingParams(logit_bias={3: 1.0}), {}, "logit_bias"),
        (SamplingParams(), {"bad_words": ["a"]}, "bad-words"),
        (SamplingParams(), {"grammar": Grammar.json_object()}, "grammar"),
    ],
)
def test_what_kernels_do_not_edit_is_refused_by_name(params, options, name) -> None:
    """S10: it was passed by, and the text was another one's."""
    hardware, _, _ = simulated_gpus()
    with LLM.open(tiny_bundle().path, mode="ar", device="cuda:0", hardware=hardware) as llm:
        for call in (llm.generate, llm.stream):
            with pytest.raises(UsageError, match=f"{name}.* target on a GPU.*--device cpu"):
                call([5, 6, 7], params, **options)
        assert llm.generate([5, 6, 7], max_tokens=2, ignore_eos=True).token_ids


def test_more_stop_ids_than_kernels_ban_are_refused_with_the_request() -> None:
    """In work of the stream it would end the pair."""
    hardware, _, _ = simulated_gpus()
    with LLM.open(tiny_bundle().path, mode="ar", device="cuda:0", hardware=hardware) as llm:
        with pytest.raises(CapacityError, match=r"--min-tokens .* 64"):
            llm.generate([5], stop_token_ids=range(70), min_tokens=3, max_tokens=5)
        assert llm.generate([5], stop_token_ids=range(70), max_tokens=5).token_ids is not None
        assert llm.generate([5], stop_token_ids=range(60), min_tokens=3, max_tokens=5)


@pytest.mark.usefixtures("may_degrade")
@pytest.mark.parametrize("device", ["cuda:0", "cuda:0,cuda:1"])
@pytest.mark.parametrize("mode", ["sd", "ssd"])
def test_a_draft_that_fails_costs_no_request_and_no_token(device: str, mode: str) -> None:
    """The pair goes on with plain decoding, and says so."""
    hardware, cuda, ort = simulated_gpus(num_gpus=2)
    with LLM.open(
        agreeing_bundle().path, mode=mode, device=device, hardware=hardware, max_batch=3
    ) as llm:
        assert llm.note is None
        whole = llm.generate_batch(PROMPTS, LAWS, max_tokens=30, min_tokens=4)
        ort.failing = ort.sessions[1]
        found = llm.generate_batch(PROMPTS, LAWS, max_tokens=30, min_tokens=4)
        again = llm.generate_batch(PROMPTS, LAWS, max_tokens=30, min_tokens=4)
        note = llm.note
    for completions in (whole, found, again):
        assert [each.token_ids for each in completions] == expected("agreeing")
    assert note is not None
    assert "the draft engine failed" in note
    del llm
    require_freed(cuda)


def test_a_target_that_fails_is_told_and_frees_everything() -> None:
    hardware, cuda, ort = simulated_gpus(num_gpus=2)
    with LLM.open(
        agreeing_bundle().path, mode="ssd", device="cuda:0,cuda:1", hardware=hardware, max_batch=3
    ) as llm:
        ort.failing = ort.sessions[0]
        for _ in range(2):  # and again, rather than hang or answer
            with pytest.raises((BackendError, DeviceError), match="CUBLAS"):
                llm.generate([5, 6, 7], max_tokens=10)
    del llm
    require_freed(cuda)


def test_without_cuda_the_package_is_named() -> None:
    def missing() -> Any:
        raise MissingDependencyError("cuda-core", "cuda", "a CUDA device")

    hardware, _, _ = simulated_gpus()
    with pytest.raises(MissingDependencyError, match="cuda-core"):
        LLM.open(
            tiny_bundle().path,
            device="cuda:0",
            hardware=dataclasses.replace(hardware, core=missing),
        )
