"""Bundles opened on GPUs, end to end over simulated ones: the tokens are those of the CPU."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from engines.bundle import Bundle
from engines.errors import BackendError, DeviceError
from export.build.build import build
from export.build.options import BuildOptions
from runtime.llm import LLM
from runtime.loading import probing
from runtime.memory_plan import MIB
from runtime.sampling.params import SamplingParams
from runtime.workers.probe import WITH_ROWS, WITH_TEXTS, Invariance
from tests.helpers.checkpoints import make_llama
from tests.helpers.fake_cuda import EAGER, LAZY, FakeCuda
from tests.helpers.session_folder import session_folder
from tests.helpers.simulated_gpu import require_freed, simulated_gpus
from tests.helpers.tiny_bundle import tiny_bundle

pytestmark = pytest.mark.usefixtures("own_memo")

PROMPTS: list[list[int]] = [[5, 6, 7], list(range(30)), [9] * 70, [11, 12]]
LAWS = [
    SamplingParams(),
    SamplingParams(temperature=0.8, seed=3),
    SamplingParams(temperature=1.0, seed=4, top_k=20, top_p=0.9),
    SamplingParams(),
]


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
