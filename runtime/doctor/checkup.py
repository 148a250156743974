"""What this machine has, and what it can therefore build and run.

Reads files of the operating system and the metadata of installed packages. It imports none of
them: a broken installation must not break the command that is there to find it.
"""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from engines.errors import UsageError
from plugins.ort.library import find
from runtime.device.cores import available_cores, cpu_quota
from runtime.device.machine import cpu_model
from runtime.doctor.backends import Backend, backends
from runtime.doctor.packages import Package, installed

ROOT = Path("/")
MATTERING_FLAGS = {
    "x86": ("avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8"),
    "arm": ("asimd", "asimddp", "i8mm", "sve", "bf16"),
}
"""What the 8-bit kernels look for: wide vectors, then integer dot products."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The processor as this process sees it. ``quota``: cores' worth of time, None if unlimited."""

    cpu: str
    cores: int
    quota: float | None

    def __str__(self) -> str:
        limit = "" if self.quota is None else f", time for {self.quota:g}"
        return f"{self.cpu}, {self.cores} core{'s' if self.cores > 1 else ''}{limit}"


@dataclass(frozen=True, slots=True)
class CpuFlags:
    """Instruction sets that the kernels can use, and those that this processor lacks."""

    present: tuple[str, ...]
    absent: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CpuKernels:
    """What engines compute with on the processor: ``library`` is None where it is ONNX Runtime
    alone, and ``reason`` then says why."""

    name: str
    library: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; None where the system does not say. ``limit`` is the container's."""

    total: int | None
    available: int | None
    limit: int | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One NVIDIA GPU that the driver lists; usable here only when its device node is visible."""

    name: str
    bus: str
    node: str | None


@dataclass(frozen=True, slots=True)
class Nvidia:
    driver: str | None
    gpus: tuple[Gpu, ...]
    peer_access: str


@dataclass(frozen=True, slots=True)
class Checkup:
    """All findings; ``advice`` has one line for each thing that limits what runs."""

    python: str
    system: str
    machine: Machine
    flags: CpuFlags
    kernels: CpuKernels
    memory: Memory
    nvidia: Nvidia
    packages: tuple[Package, ...]
    backends: tuple[Backend, ...]
    advice: tuple[str, ...]


def examine(root: Path = ROOT) -> Checkup:
    """Look at everything. ``root`` stands in for ``/`` in tests."""
    here = machine(root)
    packages = installed()
    nvidia = _nvidia(root)
    return Checkup(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        machine=here,
        flags=_flags(root),
        kernels=_kernels(root),
        memory=_memory(root),
        nvidia=nvidia,
        packages=packages,
        backends=backends(packages, has_gpu=any(gpu.node is not None for gpu in nvidia.gpus)),
        advice=tuple(_advice(here, packages)),
    )


def machine(root: Path = ROOT) -> Machine:
    """The processor and the share of it that this process may use."""
    quota = cpu_quota(root / "sys/fs/cgroup", root / "proc/self/cgroup")
    return Machine(cpu_model(root / "proc/cpuinfo"), len(available_cores()), quota)


def _advice(here: Machine, packages: tuple[Package, ...]) -> list[str]:
    advice = []
    if here.cores < 2:
        advice.append("ssd needs two cores, one for each engine: here it falls back to sd")
    elif here.quota is not None and here.quota < 2:
        advice.append(
            f"the container grants {here.quota:g} cores' worth of time: the two engines of ssd "
            "take turns, so expect no gain over sd"
        )
    found = {package.name: package for package in packages}
    if found["jinja2"].problem:
        advice.append("chat prompts need jinja2: pip install 'ssd-trt[cpu]'")
    if found["onnxruntime"].version and found["onnxruntime-gpu"].version:
        advice.append(
            "onnxruntime and onnxruntime-gpu overwrite each other's files: pip uninstall -y "
            "onnxruntime onnxruntime-gpu, then install the one you want"
        )
    return advice


def _flags(root: Path) -> CpuFlags:
    text = _read(root / "proc/cpuinfo")
    is_arm = _field(text, "flags") is None
    listed = set((_field(text, "Features" if is_arm else "flags") or "").split())
    wanted = MATTERING_FLAGS["arm" if is_arm else "x86"]
    return CpuFlags(
        tuple(flag for flag in wanted if flag in listed),
        tuple(flag for flag in wanted if flag not in listed),
    )


def _kernels(root: Path) -> CpuKernels:
    try:
        found = find(may_compile=False, cpuinfo=root / "proc/cpuinfo")
    except UsageError as error:
        return CpuKernels("none, no engine can be loaded", None, str(error))
    return CpuKernels(found.identity, None if found.path is None else str(found.path), found.reason)


def _memory(root: Path) -> Memory:
    text = _read(root / "proc/meminfo")
    total = _kib(_field(text, "MemTotal"))
    limit = None
    for file in ("memory.max", "memory/memory.limit_in_bytes"):
        value = _read(root / "sys/fs/cgroup" / file).strip()
        # Version 1 says "no limit" with a number close to 2**63.
        if value.isdigit() and (total is None or int(value) < total):
            limit = int(value)
    return Memory(total, _kib(_field(text, "MemAvailable")), limit)


def _kib(text: str | None) -> int | None:
    match = re.match(r"(\d+) kB", text or "")
    return int(match[1]) * 1024 if match else None


def _nvidia(root: Path) -> Nvidia:
    version = re.search(r"\b\d+\.\d+(\.\d+)?\b", _read(root / "proc/driver/nvidia/version"))
    gpus = tuple(
        _gpu(root, _read(file))
        for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information"))
    )
    usable = sum(gpu.node is not None for gpu in gpus)
    if usable < 2:
        peer_access = f"needs two GPUs, {usable} usable here"
    else:
        peer_access = "asked for when a pair is loaded; without it, copies go through the host"
    return Nvidia(version[0] if version else None, gpus, peer_access)


def _gpu(root: Path, information: str) -> Gpu:
    node = f"dev/nvidia{_field(information, 'Device Minor')}"
    return Gpu(
        name=_field(information, "Model") or "unknown model",
        bus=_field(information, "Bus Location") or "unknown bus",
        node=f"/{node}" if (root / node).exists() else None,
    )


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str | None:
    """The value behind ``name :`` in the first line that has one."""
    match = re.search(rf"^{re.escape(name)}[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else None
