"""--device and its kin on the command line: answers from simulated GPUs, and every bad value."""

from __future__ import annotations

import json
import shlex
from functools import partial
from pathlib import Path

import pytest

from runtime.cli.entry import main
from runtime.llm import LLM
from tests.engines.tiny_bundles import write_compiled
from tests.helpers.simulated_gpu import simulated_gpus
from tests.helpers.tiny_bundle import tiny_bundle
from tests.runtime.cli.fake_llm import FakeBundle

pytestmark = pytest.mark.usefixtures("own_memo")


def on_gpus(*argv: str) -> int:
    hardware, _, _ = simulated_gpus(num_gpus=2)
    bundle = str(tiny_bundle().path)
    return main([*argv, "--bundle", bundle], partial(LLM.open, hardware=hardware))


def test_generate_answers_from_two_gpus_as_from_the_cpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask = ("generate", "--mode", "ssd", "--prompt", "abc", "--max-tokens", "20", "--json")
    assert on_gpus(*ask, "--device", "cuda:0,cuda:1") == 0
    gpus = json.loads(capsys.readouterr().out)
    assert on_gpus(*ask, "--device", "cpu", "--fallback", "zero") == 0
    cpu = json.loads(capsys.readouterr().out)
    assert gpus["token_ids"] == cpu["token_ids"]
    assert gpus["text"] == cpu["text"]


def test_compare_finds_all_modes_identical_on_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    ask = ("compare", "--num-prompts", "2", "--max-tokens", "12", "--no-chat", "--json", "--quiet")
    assert on_gpus(*ask, "--device", "cuda:1", "--temperature", "0,0.8", "--batch", "2") == 0
    record = json.loads(capsys.readouterr().out)
    assert [run["mode"] for run in record["modes"]] == ["ar", "sd", "ssd"]


def test_verbose_tells_the_memory_plan_and_quiet_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ask = ("generate", "--mode", "ar", "--prompt", "abc", "--max-tokens", "2", "--verbose")
    assert on_gpus(*ask, "--device", "cuda:0") == 0
    err = capsys.readouterr().err
    assert "memory on cuda:0 for 1 at once: " in err
    assert on_gpus(*ask, "--device", "cuda:0", "--quiet") == 0
    assert "memory on" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--device gpu", "--device 'gpu' is no device, expected cpu, cuda:0"),
        ("--device cuda:x", "is no device"),
        ("--device ''", "is no device"),
        ("--device cuda:0,cuda:1,cpu", "names 3 devices"),
        ("--device cpu,cuda:0", "--device cuda:0,cpu"),
        ("--device cuda:7", "nvidia-smi -L"),
        ("--device cuda:0 --verify ratio", "--verify ratio is for pairs on the CPU"),
        ("--device cuda:0 --fallback jit", "--fallback jit would"),
        ("--device cuda:0,cuda:1 --fallback lookup", "--fallback lookup would"),
        ("--device cuda:0 --draft-sm-share 0.5", "--draft-sm-share"),
        ("--draft-sm-share 0.5", "divides one GPU"),
        ("--draft-sm-share 2 --device cuda:0", "above 0 and below 1"),
        ("--draft-sm-share much", "invalid float value"),
        ("--tensor-parallel 2", "no collective operations"),
        ("--tensor-parallel 0", "not a whole number >= 1"),
        ("--backend torch", "invalid choice: 'torch'"),
        ("--backend tensorrt", "the bundle was built for onnxruntime"),
    ],
)
@pytest.mark.parametrize("command", ["generate --mode ssd --prompt abc", "compare --num-prompts 1"])
def test_a_bad_value_is_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], command: str, options: str, words: str
) -> None:
    assert on_gpus(*shlex.split(command), "--quiet", *shlex.split(options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_trace_of_a_gpu_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ask = ("generate", "--mode", "ssd", "--prompt", "abc", "--trace", str(tmp_path / "t.json"))
    assert on_gpus(*ask, "--device", "cuda:0", "--quiet") == 2
    assert "--trace with --device cuda:0" in capsys.readouterr().err


def test_options_reach_the_llm() -> None:
    bundle = FakeBundle()
    argv = "generate --bundle b --prompt abc --device cuda:1,cpu --backend onnxruntime --verbose"
    assert main([*argv.split(), "--tensor-parallel", "1"], bundle.open) == 0
    [opened] = bundle.opened
    assert opened["device"] == "cuda:1,cpu"
    assert opened["backend"] == "onnxruntime"
    assert (opened["draft_sm_share"], opened["tensor_parallel"]) == (None, 1)
    assert callable(opened["tell"])
    assert main(["generate", "--bundle", "b", "--prompt", "abc"], bundle.open) == 0
    assert bundle.opened[1]["device"] is None
    assert bundle.opened[1]["tell"] is None


def test_doctor_plans_the_memory_of_a_bundle(capsys: pytest.CaptureFixture[str]) -> None:
    bundle = str(tiny_bundle().path)
    assert main(["doctor", "--bundle", bundle, "--device", "cuda:0,cpu", "--batch", "2"]) == 1
    out = capsys.readouterr().out
    assert f"bundle {bundle}, built for onnxruntime, on cuda:0,cpu" in out
    assert "memory on cuda:0 for 2 at once: " in out
    assert "memory on cpu for 2 at once: " in out
    assert "cannot run here: " in out  # there is no GPU, or no cuda.core
    assert main(["doctor", "--bundle", bundle, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)["bundle"]
    assert (record["device"], record["can_run"], record["problems"]) == ("cpu", True, [])
    [cpu] = record["memory"]["devices"]
    assert cpu["free_bytes"] > cpu["total_bytes"] == sum(item["bytes"] for item in cpu["items"])


def test_doctor_says_why_a_bundle_cannot_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    compiled = str(write_compiled(tmp_path / "c"))
    assert main(["doctor", "--bundle", compiled, "--device", "cpu"]) == 1
    assert "run on a GPU alone: --device cuda:0" in capsys.readouterr().out
    bundle = str(tiny_bundle().path)
    assert main(["doctor", "--bundle", bundle, "--batch", "99", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)["bundle"]
    assert not record["can_run"]
    assert "--max-batch 99" in record["problems"][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--device cuda:0", "--device and --batch are for the bundle of --bundle"),
        ("--batch 2", "--device and --batch are for the bundle of --bundle"),
        ("--bundle /no/such/bundle", "no bundle at /no/such/bundle"),
        ("--bundle /no/such/bundle --device gpu", "is no device"),
        ("--bundle /no/such/bundle --batch 0", "not a whole number >= 1"),
    ],
)
def test_doctors_bad_values_are_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], options: str, words: str
) -> None:
    assert main(["doctor", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
