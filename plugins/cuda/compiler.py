"""Kernel sources to cubins, by NVRTC (through cuda.core) or nvcc; no GPU needed."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engines.cachedir import cache_dir
from engines.errors import BackendError, MissingDependencyError, UsageError
from plugins.cuda.kernel import Kernel
from plugins.cuda.report import EntryReport, parse_report
from plugins.store import ROOT, Entry, KernelStore, key_of

CAPABILITIES = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
"""A100, RTX 30, RTX 40 and L4, H100 and H200, B200, RTX 50."""
STANDARD = "c++17"
NVRTC, NVCC = "nvrtc", "nvcc"


@dataclass(frozen=True, slots=True)
class KernelImage:
    """A kernel compiled for GPUs of one compute capability."""

    name: str
    capability: str
    cubin: bytes
    entries: tuple[EntryReport, ...]


def compile_kernel(
    kernel: Kernel, capability: str, *, compiler: str | None = None, is_draft: bool = False
) -> KernelImage:
    """Compile a kernel, or take it from the cache, where its source, options and compiler agree.

    Args:
        capability: of the GPU, as in ``9.0``.
        compiler: ``nvrtc``, from the extra cuda, or ``nvcc``, from a CUDA toolkit; None takes the
            second where the first is not installed.
        is_draft: hardly optimise, to see in a fraction of the time whether a source compiles.
            Not in a process that builds kernels to run: after a draft NVRTC 13.5 optimises worse.

    Raises UsageError on a capability of another form, MissingDependencyError without the
    compiler, BackendError where it refuses the source or does not know the capability.
    """
    arch = _arch(capability)
    builder = _builder(compiler)
    store = KernelStore(cache_dir() / "kernels" / "cuda")
    # With this file, which holds the other options.
    facts = [builder.name, builder.version, arch, str(is_draft), Path(__file__).read_text()]
    key = key_of(kernel.source, facts)
    found = store.get(key)
    entries = _entries(found)
    if found is None or not entries:
        cubin, log = builder.build(kernel.source, arch, is_draft)
        entries = parse_report(log)
        note = {"kernel": kernel.name, "arch": arch, "entries": [asdict(each) for each in entries]}
        found = store.put(key, "cubin", cubin, note)
    _require_entries(kernel, entries)
    return KernelImage(kernel.name, capability, found.path.read_bytes(), entries)


def _builder(compiler: str | None) -> Nvrtc | Nvcc:
    if compiler == NVCC:
        return Nvcc()
    try:
        return Nvrtc()
    except MissingDependencyError:
        if compiler is None and shutil.which("nvcc"):
            return Nvcc()
        raise


def _arch(capability: str) -> str:
    match = re.fullmatch(r"(\d+)\.(\d)", capability)
    if match is None:
        raise UsageError(f"a compute capability is written like 9.0, found {capability!r}")
    return f"sm_{match[1]}{match[2]}"


def _entries(found: Entry | None) -> tuple[EntryReport, ...]:
    """What was noted of an earlier build; empty where it was noted in another form."""
    try:
        return tuple(EntryReport(**each) for each in found.note["entries"]) if found else ()
    except (KeyError, TypeError):
        return ()


def _require_entries(kernel: Kernel, entries: Sequence[EntryReport]) -> None:
    compiled = {each.name for each in entries}
    missing = [name for name in kernel.entries if name not in compiled]
    if missing:
        raise BackendError(
            f"{kernel.source.name} of {kernel.name} lacks {', '.join(missing)}; "
            f"it has {', '.join(sorted(compiled))}"
        )


class Nvrtc:
    """NVIDIA's compiler as a library."""

    name = NVRTC

    def __init__(self) -> None:
        try:
            from cuda.bindings import nvrtc
            from cuda.core import Program, ProgramOptions
        except ImportError:
            raise MissingDependencyError("cuda-core", "cuda", "compiling a kernel") from None
        self._make_program: Any = Program
        self._make_options: Any = ProgramOptions
        try:
            _, major, minor = nvrtc.nvrtcVersion()
        except Exception:  # cuda.pathfinder's own error, of no public class
            raise MissingDependencyError(
                "nvidia-cuda-nvrtc", "cuda", "compiling a kernel"
            ) from None
        self.version = f"NVRTC {major}.{minor}"

    def build(self, source: Path, arch: str, is_draft: bool) -> tuple[bytes, str]:
        """The cubin and the compiler's report."""
        options = self._make_options(
            name=source.name,
            arch=arch,
            std=STANDARD,
            fma=False,  # as in plugins.cuda.host
            include_path=[str(ROOT)],
            ptxas_options=["-v"],
            ofast_compile="max" if is_draft else None,
        )
        log = io.StringIO()
        try:
            program = self._make_program(source.read_text(encoding="utf-8"), "c++", options=options)
            code = program.compile("cubin", logs=log).code
        except Exception as error:  # cuda.core's own error, of no public class
            raise _refusal(self.version, source, arch, str(error)) from error
        return bytes(code), log.getvalue()


class Nvcc:
    """The compiler of an installed CUDA toolkit."""

    name = NVCC

    def __init__(self) -> None:
        found = shutil.which("nvcc")
        if found is None:
            raise BackendError(
                "nvcc is not on the path; put the CUDA toolkit's bin folder there, "
                "or leave --compiler out to compile with NVRTC"
            )
        self._path = found
        self.version = self._run("--version").stdout.strip()

    def build(self, source: Path, arch: str, is_draft: bool) -> tuple[bytes, str]:
        """The cubin and the compiler's report."""
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "kernel.cubin")
            flags = [f"-arch={arch}", f"-std={STANDARD}", "-cubin", "-fmad=false", "-Xptxas=-v"]
            if is_draft:
                flags.append("-Ofast-compile=max")
            done = self._run(*flags, f"-I{ROOT}", "-x", "cu", str(source), "-o", str(output))
            if done.returncode:
                raise _refusal("nvcc", source, arch, done.stderr)
            return output.read_bytes(), done.stderr

    def _run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self._path, *args], capture_output=True, text=True, check=False)


def _refusal(compiler: str, source: Path, arch: str, text: str) -> BackendError:
    lines = [line.strip() for line in text.splitlines() if "error:" in line]
    reason = lines[0] if lines else " ".join(text.split())
    return BackendError(f"{compiler} refuses {source.name} for {arch}: {reason}")
