"""``doctor`` on the command line: readable text, or one JSON object."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json

import pytest

from runtime.cli import doctor as command
from runtime.cli.entry import main
from runtime.doctor import Gpu, Nvidia, Package, examine
from runtime.doctor.backends import backends
from runtime.doctor.packages import REQUIREMENTS

RTX = "tensorrt-rtx-cu13"


def test_text_names_backends_and_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "backend can build can run" in lines
    assert any(line.startswith("tensorrt-rtx ") and line.endswith(" no") for line in lines)
    assert any(line.startswith("tensorrt-rtx cannot ") for line in lines)
    assert any(line.startswith("cpu ") for line in lines)
    assert any(line.startswith("tokenizers ") for line in lines)
    assert err == ""


def test_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["machine"]["cores"] >= 1
    assert [backend["name"] for backend in record["backends"]] == [
        "onnxruntime",
        "onnxruntime on CUDA",
        "tensorrt-rtx",
        "tensorrt",
    ]
    assert set(record["backends"][0]) == {
        "name", "can_build", "can_run", "why_not_build", "why_not_run",
        "install_to_build", "install_to_run",
    }  # fmt: skip


def test_nothing_installed_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("onnxruntime cannot ")]
    to_build, to_run = lines
    assert to_build.startswith("onnxruntime cannot build: not installed: onnx, ")
    assert to_build.endswith("(pip install 'ssd-trt[export]')")
    assert to_run.startswith("onnxruntime cannot run: not installed: onnxruntime, tokenizers")
    assert to_run.endswith("(pip install 'ssd-trt[cpu]')")
    assert "chat prompts need jinja2" in out


@pytest.mark.parametrize("has_compiler", [False, True])
def test_each_of_building_and_running_has_its_own_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_compiler: bool
) -> None:
    """On a machine without a GPU, with TensorRT-RTX and without."""
    problem = None if has_compiler else "not installed"
    there = [
        Package(each.name, "1.0", each.extra, problem if each.name == RTX else None)
        for each in REQUIREMENTS
    ]
    found = backends(tuple(there), has_gpu=False)
    checkup = dataclasses.replace(examine(), backends=found)
    monkeypatch.setattr(command, "examine", lambda: checkup)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    reasons = [line for line in lines if line.startswith("tensorrt-rtx cannot ")]
    if has_compiler:
        assert reasons == ["tensorrt-rtx cannot run: no GPU is usable here"]
    else:
        missing = "not installed: tensorrt-rtx-cu13 (pip install 'ssd-trt[rtx]')"
        assert reasons == [
            f"tensorrt-rtx cannot build: {missing}",
            f"tensorrt-rtx cannot run: {missing}; no GPU is usable here",
        ]


def test_a_hidden_gpu_is_shown_as_hidden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = (Gpu("NVIDIA H200", "0000:01:00.0", None), Gpu("NVIDIA H200", "0000:02:00.0", "/dev/n"))
    nvidia = Nvidia("580.1", gpus, "needs two GPUs, 1 usable here")
    checkup = dataclasses.replace(examine(), nvidia=nvidia)
    monkeypatch.setattr(command, "examine", lambda: checkup)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "bus 0000:01:00.0, no device node" in out
    assert "bus 0000:02:00.0, /dev/n" in out
    assert "peer access  needs two GPUs" in out
