"""A compiler that is not there: builds of compiled bundles up to the process that would compile."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

import export.build.compiled
from export.build.options import BuildOptions
from export.tensorrt.capabilities import LocalGpu
from export.tensorrt.process import CompileRequest
from export.tensorrt.progress import Progress
from export.tensorrt.vendor import Vendor
from tests.helpers.checkpoints import make_draft, make_llama

MEMBERS = {"NONE": 0, "SM75": 75, "SM89": 89, "SM120": 120}
MODULE = SimpleNamespace(ComputeCapability=SimpleNamespace(__members__=MEMBERS))
RTX = Vendor(MODULE, "tensorrt-rtx", "1.7.1.116", is_rtx=True)
STANDARD = Vendor(SimpleNamespace(), "tensorrt", "11.4.0.106", is_rtx=False)
NUMBERS = count()


def tiny_options(folder: Path) -> BuildOptions:
    """A sound build of a tiny pair, whose checkpoints are written into ``folder``."""
    target = make_llama(folder / "target", hidden=64, intermediate=128)
    draft = make_draft(folder / "draft", hidden=64, intermediate=128)
    return BuildOptions(
        str(target),
        str(draft),
        folder / "out" / "b",
        backend="tensorrt-rtx",
        precision="fp16",
        max_len=64,
        num_draft=2,
        max_branches=4,
        capabilities=("8.9", "12.0"),
    )


class Compiler:
    """Stands in for the child process; remembers what it was asked for.

    T5: no two plans that it makes are equal, as with TensorRT.
    """

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.requests: list[CompileRequest] = []

    def __call__(self, request: CompileRequest, progress: Progress) -> None:
        progress("compiling", 50, 100)
        assert Path(request.onnx_path).is_file()
        Path(request.plan_path).write_bytes(f"plan {next(NUMBERS)}".encode())
        if self.error is not None:
            raise self.error
        self.requests.append(request)


def use(
    monkeypatch: pytest.MonkeyPatch,
    compiler: Compiler,
    vendor: Vendor = RTX,
    gpu: LocalGpu | None = None,
) -> None:
    monkeypatch.setattr(export.build.compiled, "compile_in_process", compiler)
    monkeypatch.setattr(export.build.compiled, "load", lambda _name: vendor)
    monkeypatch.setattr(export.build.compiled, "local_gpu", lambda: gpu)
