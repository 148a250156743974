"""``doctor`` on the command line: readable text, or one JSON object."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json

import pytest

from runtime.cli import doctor as command
from runtime.cli.entry import main
from runtime.doctor import Gpu, Nvidia, examine


def test_text_names_backends_and_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capsys.readouterr()
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "backend can build can run" in lines
    assert any(line.startswith("tensorrt-rtx ") and line.endswith(" no") for line in lines)
    assert any(line.startswith("tensorrt-rtx: ") for line in lines)
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
    assert set(record["backends"][0]) == {"name", "can_build", "can_run", "why_not", "install"}


def test_nothing_installed_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "onnxruntime: tokenizers: not installed" in out
    assert "onnxruntime: install with pip install 'ssd-trt[cpu]'" in out
    assert "chat prompts need jinja2" in out


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
