"""Compiling kernels without a GPU: every architecture, the cache, and what goes wrong."""

from __future__ import annotations

import builtins
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from engines.errors import BackendError, MissingDependencyError, UsageError
from plugins.cuda import compiler, registry
from plugins.cuda.args import Args, Number
from plugins.cuda.compiler import CAPABILITIES, NVCC, Nvrtc, compile_kernel
from plugins.cuda.kernel import Kernel
from plugins.cuda.report import EntryReport

ROOT = Path(__file__).parents[3]
SMALL = """
struct SmallArgs { int unused; };
extern "C" __global__ void small(const SmallArgs args) {}
"""
LOG = """ptxas info    : Compiling entry function 'small' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers
"""


@pytest.fixture
def small(tmp_path: Path) -> Kernel:
    source = tmp_path / "small.cu"
    source.write_text(SMALL)
    return Kernel("small", source, Args(Number("unused")), ("small",), ())


FULLY_COMPILED = CAPABILITIES if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else ("9.0",)
"""The optimiser takes most of the time: all of it for all architectures is for the deep profile."""
FULL_BUILD = """
import json, sys
from dataclasses import asdict
from plugins.cuda import registry
from plugins.cuda.compiler import compile_kernel
image = compile_kernel(registry.kernel(sys.argv[1]), sys.argv[2])
print(json.dumps([asdict(each) for each in image.entries]))
"""


def full_build(name: str, capability: str) -> list[EntryReport]:
    """In a process of its own: after a draft NVRTC optimises worse as long as its process lives."""
    done = subprocess.run(
        [sys.executable, "-c", FULL_BUILD, name, capability],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [EntryReport(**each) for each in json.loads(done.stdout)]


@pytest.mark.cuda
@pytest.mark.parametrize("name", registry.NAMES)
def test_a_kernel_compiles_for_every_architecture(
    name: str, kernel_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And spills no registers: a spill costs memory traffic."""
    monkeypatch.setenv("SSD_TRT_CACHE", str(kernel_cache))
    kernel = registry.kernel(name)
    for capability in CAPABILITIES:
        if capability in FULLY_COMPILED:
            entries = full_build(name, capability)
            assert not [each.name for each in entries if each.spill_bytes], capability
        else:
            image = compile_kernel(kernel, capability, is_draft=True)
            assert image.cubin[:4] == b"\x7fELF"
            entries = list(image.entries)
        assert set(kernel.entries) <= {each.name for each in entries}
        for each in entries:
            assert 8 <= each.registers <= 255
            assert each.shared_bytes <= 48 * 1024


@pytest.mark.cuda
def test_every_cuda_core_name_that_is_used_exists() -> None:
    """The library is young; the names are those of 1.2."""
    from cuda.core import ObjectCode, Program, ProgramOptions

    options = inspect.signature(ProgramOptions).parameters
    assert {"name", "arch", "std", "fma", "include_path", "ptxas_options", "ofast_compile"} <= set(
        options
    )
    program = Program("", "c++", options=ProgramOptions(arch="sm_90"))
    assert {"target_type", "logs"} <= set(inspect.signature(program.compile).parameters)
    assert hasattr(ObjectCode, "code")


@pytest.mark.cuda
def test_every_driver_function_that_is_used_exists() -> None:
    from cuda.bindings import driver, nvrtc

    for name in (
        "cuLibraryLoadData",
        "cuLibraryGetKernel",
        "cuKernelGetFunction",
        "cuLaunchKernel",
    ):
        assert callable(getattr(driver, name))
    assert driver.CUresult.CUDA_SUCCESS.name == "CUDA_SUCCESS"
    assert "kernelParams" in (driver.cuLaunchKernel.__doc__ or "")
    status, major, _ = nvrtc.nvrtcVersion()
    assert int(status) == 0
    assert major >= 12


@pytest.mark.cuda
@pytest.mark.usefixtures("own_cache")
def test_the_compilers_reason_is_one_line(small: Kernel) -> None:
    small.source.write_text(SMALL.replace("int unused", "typo unused"))
    with pytest.raises(BackendError, match=r"refuses small.cu for sm_90: .*typo") as caught:
        compile_kernel(small, "9.0")
    assert "\n" not in str(caught.value)


@pytest.mark.cuda
@pytest.mark.usefixtures("own_cache")
def test_an_unknown_architecture_is_an_error(small: Kernel) -> None:
    with pytest.raises(BackendError, match=r"sm_10.*gpu-architecture"):
        compile_kernel(small, "1.0")


@pytest.mark.cuda
@pytest.mark.usefixtures("own_cache")
def test_device_and_host_round_alike(tmp_path: Path) -> None:
    """No fused multiply-add: numpy and the host form round a product and a sum apart."""
    source = tmp_path / "round.cu"
    source.write_text('extern "C" __global__ void f(float* a) { a[0] = a[1] * a[2] + a[3]; }')
    apart = Nvrtc()
    cubin, _ = apart.build(source, "sm_90", is_draft=False)
    fused = Nvrtc()
    fused._make_options = lambda **given: apart._make_options(**{**given, "fma": True})
    assert fused.build(source, "sm_90", is_draft=False)[0] != cubin


class FakeNvrtc:
    """A compiler that counts its builds."""

    builds = 0
    name, version = "nvrtc", "fake 1"

    def build(self, source: Path, arch: str, is_draft: bool) -> tuple[bytes, str]:
        FakeNvrtc.builds += 1
        return source.read_bytes() + arch.encode() + bytes([is_draft]), LOG


@pytest.fixture
def fake(
    monkeypatch: pytest.MonkeyPatch,
    own_cache: Path,  # noqa: ARG001
) -> type[FakeNvrtc]:
    monkeypatch.setattr(compiler, "Nvrtc", FakeNvrtc)
    monkeypatch.setattr(FakeNvrtc, "builds", 0)
    monkeypatch.setattr(FakeNvrtc, "version", "fake 1")
    return FakeNvrtc


def test_the_cache_knows_source_architecture_and_compiler(small: Kernel, fake) -> None:
    first = compile_kernel(small, "9.0")
    assert compile_kernel(small, "9.0") == first
    assert fake.builds == 1
    assert compile_kernel(small, "8.0").cubin != first.cubin
    assert fake.builds == 2
    fake.version = "fake 2"
    compile_kernel(small, "9.0")
    assert fake.builds == 3
    small.source.write_text(SMALL + "\n")
    changed = compile_kernel(small, "9.0").cubin
    assert changed != first.cubin
    assert fake.builds == 4
    assert compile_kernel(small, "9.0", is_draft=True).cubin != changed
    assert compile_kernel(small, "9.0").cubin == changed
    assert fake.builds == 5


@pytest.mark.parametrize("kind", ["cubin", "json"])
def test_a_damaged_cache_entry_is_compiled_again(
    small: Kernel, fake, own_cache: Path, kind: str
) -> None:
    first = compile_kernel(small, "9.0")
    [file] = own_cache.rglob(f"*.{kind}")
    file.write_bytes(file.read_bytes()[:-3])
    assert compile_kernel(small, "9.0") == first
    assert fake.builds == 2


def test_a_note_of_another_release_is_compiled_again(small: Kernel, fake, own_cache: Path) -> None:
    compile_kernel(small, "9.0")
    [note] = own_cache.rglob("*.json")
    note.write_text(note.read_text().replace("registers", "num_registers"))
    assert compile_kernel(small, "9.0").entries[0].registers == 8
    assert fake.builds == 2


@pytest.mark.usefixtures("fake")
def test_an_entry_that_the_source_lacks_is_named(small: Kernel) -> None:
    other = Kernel("small", small.source, small.args, ("small", "large"), ())
    with pytest.raises(BackendError, match="lacks large; it has small"):
        compile_kernel(other, "9.0")


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("capability", ["90", "sm_90", "9", "9.0a", ""])
def test_a_capability_has_one_form(small: Kernel, capability: str) -> None:
    with pytest.raises(UsageError, match=r"written like 9\.0"):
        compile_kernel(small, capability)


@pytest.mark.usefixtures("own_cache")
def test_without_cuda_core_the_extra_is_named(
    small: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_import = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("cuda."):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependencyError, match=r"ssd-trt\[cuda\]"):
        compile_kernel(small, "9.0")


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("asked", [NVCC, None])
def test_nvcc_is_an_alternative(
    small: Kernel, asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for nvcc: what is asked of it, and that its report is read. Asked for, or taken
    where the library is not installed."""

    def no_library() -> None:
        raise MissingDependencyError("nvidia-cuda-nvrtc", "cuda", "compiling a kernel")

    monkeypatch.setattr(compiler, "Nvrtc", no_library)
    script = tmp_path / "nvcc"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo one && exit\n'
        'while [ "$1" != -o ]; do shift; done\nprintf cubin > "$2"\n'
        f"cat >&2 <<'END'\n{LOG}END\n"
    )
    script.chmod(0o755)
    monkeypatch.setattr(
        compiler, "shutil", SimpleNamespace(which=lambda name: str(script) if name else None)
    )
    image = compile_kernel(small, "9.0", compiler=asked)
    assert image.cubin == b"cubin"
    assert image.entries[0].registers == 8


@pytest.mark.usefixtures("own_cache")
def test_a_missing_nvcc_is_an_error(small: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BackendError, match="nvcc is not on the path"):
        compile_kernel(small, "9.0", compiler=NVCC)
