"""What is refused on GPUs, over simulated ones: by name, and with nothing left behind."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from engines.errors import (
    BackendError,
    CapacityError,
    DeviceError,
    MissingDependencyError,
    UsageError,
)
from runtime.grammar import Grammar
from runtime.llm import LLM
from runtime.loading import probing
from runtime.memo import Memo
from runtime.memory_plan import MIB
from runtime.sampling.params import SamplingParams
from runtime.workers.probe import Invariance
from tests.helpers.fake_cuda import EAGER, FakeCuda
from tests.helpers.fake_ort_gpu import FakeOrt
from tests.helpers.simulated_gpu import require_freed, simulated_gpus
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.usefixtures("own_memo")


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
