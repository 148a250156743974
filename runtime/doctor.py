"""What this machine has, and what it can therefore build and run.

Reads files of the operating system and the metadata of installed packages. It imports none of
them: a broken installation must not break the command that is there to find it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from runtime.device.cores import available_cores, cpu_quota
from runtime.device.machine import cpu_model

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
class Requirement:
    """A package this project knows. ``distributions``: names it is also published under."""

    name: str
    extra: str | None
    least: tuple[int, int] | None = None
    distributions: tuple[str, ...] = ()
    module: str | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """``problem`` is None when the package can be used."""

    name: str
    version: str | None
    extra: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class Backend:
    """Whether bundles for a backend can be built and run here, and if not, why and what helps."""

    name: str
    can_build: bool
    can_run: bool
    why_not: tuple[str, ...]
    install: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checkup:
    """All findings; ``advice`` has one line for each thing that limits what runs."""

    python: str
    system: str
    machine: Machine
    flags: CpuFlags
    memory: Memory
    nvidia: Nvidia
    packages: tuple[Package, ...]
    backends: tuple[Backend, ...]
    advice: tuple[str, ...]


REQUIREMENTS = (
    Requirement("numpy", None, (2, 0)),
    Requirement("onnxruntime", "cpu", (1, 32), ("onnxruntime-gpu",)),
    Requirement("tokenizers", "cpu", (0, 22)),
    Requirement("jinja2", "cpu", (3, 1)),
    Requirement("rich", "cpu", (13, 0)),
    Requirement("onnx", "export", (1, 22)),
    Requirement("onnx-ir", "export", (0, 2)),
    Requirement("gguf", "export", (0, 17)),
    Requirement("safetensors", "export", (0, 6)),
    Requirement("huggingface-hub", "hub", (1, 0)),
    Requirement("torch", "torch", (2, 13)),
    Requirement("transformers", "torch", (5, 0)),
    Requirement("tensorrt", "tensorrt", (10, 15), ("tensorrt-cu13", "tensorrt-cu12")),
    Requirement("tensorrt-rtx-cu13", "rtx", (1, 7), module="tensorrt_rtx"),
    Requirement("cuda-core", None, module="cuda"),
    Requirement("cuda-bindings", None, module="cuda"),
    Requirement("polygraphy", "bench", (0, 53)),
)
TO_RUN = ("onnxruntime", "tokenizers")
TO_BUILD = ("onnx", "onnx-ir", "gguf", "safetensors", "tokenizers")
CANNOT_RUN = "this version builds its engines and cannot run them yet"


def examine(root: Path = ROOT) -> Checkup:
    """Look at everything. ``root`` stands in for ``/`` in tests."""
    here = machine(root)
    packages = tuple(_package(requirement) for requirement in REQUIREMENTS)
    nvidia = _nvidia(root)
    return Checkup(
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        machine=here,
        flags=_flags(root),
        memory=_memory(root),
        nvidia=nvidia,
        packages=packages,
        backends=(
            _onnxruntime(packages),
            _tensorrt_rtx(packages),
            _tensorrt(packages, nvidia),
        ),
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
    if any(package.name == "jinja2" and package.problem for package in packages):
        advice.append("chat prompts need jinja2: pip install 'ssd-trt[cpu]'")
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
        peer_access = "not tested: GPU backends are not in this version"
    return Nvidia(version[0] if version else None, gpus, peer_access)


def _gpu(root: Path, information: str) -> Gpu:
    node = f"dev/nvidia{_field(information, 'Device Minor')}"
    return Gpu(
        name=_field(information, "Model") or "unknown model",
        bus=_field(information, "Bus Location") or "unknown bus",
        node=f"/{node}" if (root / node).exists() else None,
    )


def _package(wanted: Requirement) -> Package:
    version = _version(wanted)
    problem = None
    if version is None:
        problem = "not installed"
    elif not _is_there(wanted.module or wanted.name.replace("-", "_")):
        problem = "damaged: its files are missing"
    elif wanted.least is not None and _release(version) < wanted.least:
        problem = f"{version} is older than {'.'.join(map(str, wanted.least))}"
    return Package(wanted.name, version, wanted.extra, problem)


def _version(wanted: Requirement) -> str | None:
    for distribution in (wanted.name, *wanted.distributions):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _onnxruntime(packages: tuple[Package, ...]) -> Backend:
    to_build, to_run = _bad(packages, TO_BUILD), _bad(packages, TO_RUN)
    return Backend(
        name="onnxruntime",
        can_build=not to_build,
        can_run=not to_run,
        why_not=_problems(to_build | to_run),
        install=_installs(to_build | to_run),
    )


def _tensorrt_rtx(packages: tuple[Package, ...]) -> Backend:
    """Compiles anywhere, a GPU or not."""
    bad = _bad(packages, (*TO_BUILD, "tensorrt-rtx-cu13"))
    return Backend(
        name="tensorrt-rtx",
        can_build=not bad,
        can_run=False,
        why_not=(*_problems(bad), CANNOT_RUN),
        install=_installs(bad),
    )


def _tensorrt(packages: tuple[Package, ...], nvidia: Nvidia) -> Backend:
    """Compiles on the GPU that will run the engine."""
    bad = _bad(packages, (*TO_BUILD, "tensorrt"))
    has_gpu = any(gpu.node is not None for gpu in nvidia.gpus)
    no_gpu = "it compiles on the GPU that will run the engine, and none is usable here"
    return Backend(
        name="tensorrt",
        can_build=has_gpu and not bad,
        can_run=False,
        why_not=(*_problems(bad), *(() if has_gpu else (no_gpu,)), CANNOT_RUN),
        install=_installs(bad),
    )


def _bad(packages: tuple[Package, ...], needed: tuple[str, ...]) -> dict[str, Package]:
    """The needed packages that cannot be used, in the order of ``needed``."""
    found = {package.name: package for package in packages}
    return {name: found[name] for name in needed if found[name].problem is not None}


def _problems(bad: dict[str, Package]) -> tuple[str, ...]:
    return tuple(f"{name}: {package.problem}" for name, package in bad.items())


def _installs(bad: dict[str, Package]) -> tuple[str, ...]:
    extras = dict.fromkeys(package.extra for package in bad.values())
    return tuple(f"pip install 'ssd-trt[{extra}]'" for extra in extras)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _field(text: str, name: str) -> str | None:
    """The value behind ``name :`` in the first line that has one."""
    match = re.search(rf"^{re.escape(name)}[ \t]*:[ \t]*(.*)$", text, re.MULTILINE)
    return match[1].strip() if match else None
