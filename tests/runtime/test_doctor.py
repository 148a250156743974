"""The check-up reads any machine: full, bare or broken, and never ends in a traceback."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from plugins import cxx
from plugins.ort import library
from runtime import doctor
from runtime.backends.onnxruntime_gpu_package import LEAST_VERSION
from runtime.doctor import checkup as checkups
from runtime.doctor.packages import REQUIREMENTS

ROOT = Path(__file__).parents[2]
CPUINFO = """\
processor\t: 0
model name\t: AMD EPYC 9654
flags\t\t: fpu avx2 fma avx512f avx512_vnni

processor\t: 1
model name\t: AMD EPYC 9654
"""


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def packages_of(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], missing_module: str = ""
) -> dict[str, doctor.Package]:
    def version(name: str) -> str:
        try:
            return versions[name]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    def find_spec(name: str) -> object | None:
        return None if name == missing_module else object()

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return {package.name: package for package in doctor.examine().packages}


def test_a_machine_without_any_of_the_files_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_packages(monkeypatch)
    checkup = doctor.examine(tmp_path)
    assert checkup.machine.cpu
    assert checkup.memory == doctor.Memory(None, None, None)
    assert checkup.nvidia == doctor.Nvidia(None, (), "needs two GPUs, 0 usable here")
    assert not any(backend.can_build or backend.can_run for backend in checkup.backends)
    on_cpu, on_cuda, *_ = checkup.backends
    assert on_cpu.install_to_build == on_cuda.install_to_build
    assert on_cpu.install_to_build == ("pip install 'ssd-trt[export]'",)
    assert on_cpu.install_to_run == ("pip install 'ssd-trt[cpu]'",)
    # Not cpu: the two executors overwrite each other.
    assert on_cuda.install_to_run == ("pip install 'ssd-trt[gpu]'",)


def test_cpu_memory_and_quota_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkups, "available_cores", lambda: (0, 1, 2))
    write(tmp_path, "proc/cpuinfo", CPUINFO)
    write(tmp_path, "proc/meminfo", "MemTotal:   4096 kB\nMemFree: 1 kB\nMemAvailable: 2048 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "1048576\n")
    checkup = doctor.examine(tmp_path)
    assert checkup.machine == doctor.Machine("AMD EPYC 9654", 3, 1.5)
    assert str(checkup.machine) == "AMD EPYC 9654, 3 cores, time for 1.5"
    assert checkup.flags.present == ("avx2", "fma", "avx512f", "avx512_vnni")
    assert checkup.flags.absent == ("avx_vnni", "avx512_bf16", "amx_int8")
    assert checkup.memory == doctor.Memory(4096 * 1024, 2048 * 1024, 1048576)
    assert any("1.5 cores' worth" in line for line in checkup.advice)


@pytest.mark.parametrize("limit", ["max\n", "9223372036854771712\n"])
def test_an_unlimited_container_has_no_memory_limit(tmp_path: Path, limit: str) -> None:
    write(tmp_path, "proc/meminfo", "MemTotal: 4096 kB\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", limit)
    assert doctor.examine(tmp_path).memory.limit is None


def test_the_kernels_for_8_bit_weights_are_named_and_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSD_TRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "PACKAGED", tmp_path / "built")
    write(tmp_path, "proc/cpuinfo", "flags\t: avx2\n")
    kernels = doctor.examine(tmp_path).kernels
    assert (kernels.name, kernels.library) == ("ONNX Runtime's own", None)
    assert kernels.reason == "this processor has no avx512f and no avx512_vnni"
    write(tmp_path, "proc/cpuinfo", "flags\t: avx512f avx512_vnni\n")
    monkeypatch.setattr(cxx, "compiler", lambda: "g++")
    assert "python -m plugins.ort" in doctor.examine(tmp_path).kernels.reason
    monkeypatch.setattr(cxx, "compile_library", lambda *_, **__: b"library")
    monkeypatch.setattr(cxx, "why_not_loadable", lambda *_: "")
    made = library.package()
    kernels = doctor.examine(tmp_path).kernels
    assert (kernels.name, kernels.library, kernels.reason) == (made.identity, str(made.path), "")
    monkeypatch.setenv(library.SWITCH, "garbage")
    assert "it must be on or off" in doctor.examine(tmp_path).kernels.reason


def test_an_arm_processor_is_judged_by_its_own_flags(tmp_path: Path) -> None:
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd asimddp\n")
    flags = doctor.examine(tmp_path).flags
    assert flags.present == ("asimd", "asimddp")
    assert flags.absent == ("i8mm", "sve", "bf16")


def test_one_core_is_told_that_ssd_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkups, "available_cores", lambda: (0,))
    assert any("falls back to sd" in line for line in doctor.examine().advice)


def test_a_gpu_counts_only_with_its_device_node(tmp_path: Path) -> None:
    """In a container the driver's files show the host's GPUs, whether or not they are handed in."""
    write(
        tmp_path,
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
    )
    for minor in (0, 1):
        write(
            tmp_path,
            f"proc/driver/nvidia/gpus/0000:0{minor}:00.0/information",
            f"Model: \t NVIDIA H200\nBus Location: \t 0000:0{minor}:00.0\nDevice Minor: {minor}\n",
        )
    write(tmp_path, "dev/nvidia1", "")
    nvidia = doctor.examine(tmp_path).nvidia
    assert nvidia.driver == "580.95.05"
    assert nvidia.gpus == (
        doctor.Gpu("NVIDIA H200", "0000:00:00.0", None),
        doctor.Gpu("NVIDIA H200", "0000:01:00.0", "/dev/nvidia1"),
    )
    assert nvidia.peer_access == "needs two GPUs, 1 usable here"
    write(tmp_path, "dev/nvidia0", "")
    assert doctor.examine(tmp_path).nvidia.peer_access.startswith("asked for when a pair")


def test_packages_are_found_old_missing_or_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {
        "numpy": "2.4.6",
        "onnxruntime-gpu": "1.30.0",
        "cuda-bindings": "13.4.4",
        "tokenizers": "0.3.9",
        "onnx-ir": "1.1.0rc1",
        "rich": "15.0.0",
    }
    packages = packages_of(monkeypatch, versions, missing_module="onnx_ir")
    assert packages["numpy"].problem is None
    assert packages["onnxruntime"].problem == "not installed"
    assert packages["onnxruntime-gpu"] == doctor.Package(
        "onnxruntime-gpu", "1.30.0", "gpu", "1.30.0 is older than 1.31"
    )
    assert packages["cuda-bindings"] == doctor.Package("cuda-bindings", "13.4.4", "cuda", None)
    assert packages["tokenizers"].problem == "0.3.9 is older than 0.22"
    assert packages["onnx-ir"].problem == "damaged: its files are missing"
    assert packages["gguf"].problem == "not installed"


def test_building_and_running_are_judged_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inference machine has no exporter: it must not be told that it cannot run."""
    packages_of(monkeypatch, {"onnxruntime": "1.32.0", "tokenizers": "0.23.3"})
    [backend, *_] = doctor.examine().backends
    assert (backend.can_build, backend.can_run) == (False, True)
    assert backend.install_to_build == ("pip install 'ssd-trt[export]'",)
    assert "onnx: not installed" in backend.why_not_build
    assert (backend.why_not_run, backend.install_to_run) == ((), ())


def test_a_tokenizer_to_build_with_brings_no_second_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is of the cpu extra, which has onnxruntime, and of the exporter's, which has not."""
    packages_of(monkeypatch, EXPORT | {"onnxruntime-gpu": "1.31.0"})
    for backend in doctor.examine().backends[:2]:
        assert backend.why_not_build == ("tokenizers: not installed",)
        assert backend.install_to_build == ("pip install 'ssd-trt[export]'",)


EXPORT = {"onnx": "1.23.0", "onnx-ir": "1.1", "gguf": "0.19", "safetensors": "0.8"}
DRIVING = {"tokenizers": "0.23", "cuda-core": "1.2.2", "cuda-bindings": "13.4.4"}


def with_gpu(root: Path) -> None:
    gpu = "Model: \t NVIDIA L40\nBus Location: \t 0\nDevice Minor: 0\n"
    write(root, "proc/driver/nvidia/gpus/0/information", gpu)
    write(root, "dev/nvidia0", "")


def backends_of(root: Path) -> dict[str, doctor.Backend]:
    return {backend.name: backend for backend in doctor.examine(root).backends}


def test_tensorrt_backends_need_a_gpu_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RTX compiles without a GPU; standard TensorRT must not promise to."""
    both = {"tensorrt-rtx-cu13": "1.7.1.116", "tensorrt": "11.4.0.106"}
    packages_of(monkeypatch, EXPORT | DRIVING | both)
    found = backends_of(tmp_path)
    rtx, standard = found["tensorrt-rtx"], found["tensorrt"]
    assert (rtx.can_build, rtx.why_not_build) == (True, ())
    assert (rtx.can_run, rtx.why_not_run) == (False, ("no GPU is usable here",))
    assert (standard.can_build, standard.can_run) == (False, False)
    assert standard.why_not_build == (
        "it compiles on the GPU that will run the engine; no GPU is usable here",
    )
    assert standard.why_not_run == ("no GPU is usable here",)
    with_gpu(tmp_path)
    found = backends_of(tmp_path)
    for name in ("tensorrt-rtx", "tensorrt"):
        each = found[name]
        assert (each.can_build, each.can_run) == (True, True)
        assert (each.why_not_build, each.why_not_run) == ((), ())


@pytest.mark.parametrize("has_gpu", [False, True])
def test_a_missing_compiler_is_why_nothing_can_be_built_and_no_gpu_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_gpu: bool
) -> None:
    """Where TensorRT-RTX was missing, "no GPU" stood as the reason why it cannot build."""
    if has_gpu:
        with_gpu(tmp_path)
    packages_of(monkeypatch, EXPORT | DRIVING)
    found = backends_of(tmp_path)
    rtx, standard = found["tensorrt-rtx"], found["tensorrt"]
    missing, install = ("tensorrt-rtx-cu13: not installed",), ("pip install 'ssd-trt[rtx]'",)
    assert (rtx.can_build, rtx.why_not_build, rtx.install_to_build) == (False, missing, install)
    no_gpu = () if has_gpu else ("no GPU is usable here",)
    assert (rtx.can_run, rtx.why_not_run, rtx.install_to_run) == (
        False,
        (*missing, *no_gpu),
        install,
    )
    assert not standard.can_build
    assert "tensorrt: not installed" in standard.why_not_build
    assert standard.install_to_build == ("pip install 'ssd-trt[tensorrt]'",)


def test_packages_to_drive_gpus_are_not_asked_for_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages_of(monkeypatch, EXPORT | {"tokenizers": "0.23", "tensorrt-rtx-cu13": "1.7.1"})
    rtx = backends_of(tmp_path)["tensorrt-rtx"]
    assert rtx.can_build
    assert rtx.install_to_run == ("pip install 'ssd-trt[cuda]'",)
    assert "cuda-core: not installed" in rtx.why_not_run


def test_onnxruntime_for_gpus_serves_the_cpu_too_but_not_beside_the_other_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_gpu(tmp_path)
    packages_of(monkeypatch, EXPORT | DRIVING | {"onnxruntime-gpu": "1.31.0"})
    found = backends_of(tmp_path)
    assert found["onnxruntime"].can_run
    assert found["onnxruntime on CUDA"].can_run
    assert found["onnxruntime on CUDA"].why_not_run == ()
    packages_of(
        monkeypatch, EXPORT | DRIVING | {"onnxruntime-gpu": "1.31.0", "onnxruntime": "1.32.0"}
    )
    cuda = backends_of(tmp_path)["onnxruntime on CUDA"]
    assert not cuda.can_run
    assert cuda.why_not_run == (
        "onnxruntime is installed beside onnxruntime-gpu; keep the latter alone",
    )
    assert any("overwrite each other" in line for line in doctor.examine(tmp_path).advice)
    packages_of(monkeypatch, EXPORT | DRIVING | {"onnxruntime": "1.32.0"})
    cuda = backends_of(tmp_path)["onnxruntime on CUDA"]
    assert (cuda.can_build, cuda.can_run) == (True, False)
    assert cuda.install_to_run == ("pip uninstall -y onnxruntime; pip install 'ssd-trt[gpu]'",)


def test_the_oldest_releases_are_those_of_pyproject() -> None:
    """Two lists of the same bounds drift apart unless something compares them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared: dict[str, str] = {}
    extras = project["optional-dependencies"].values()
    for wanted in chain(project["dependencies"], *extras):
        match = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?(?:>=|==)([\d.]+)(?:,<\d+)?", wanted)
        if match:
            declared[match[1]] = match[2]
    declared.setdefault("onnxruntime-gpu", ".".join(map(str, LEAST_VERSION)))
    for requirement in REQUIREMENTS:
        if requirement.least is not None:
            bound = [int(part) for part in declared[requirement.name].split(".")] + [0]
            assert list(requirement.least) == bound[:2], requirement.name
