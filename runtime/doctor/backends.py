"""Which backends can build and run bundles here, and if not, why and what helps."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.doctor.packages import Package, bad, installs, problems

TO_RUN = ("onnxruntime", "tokenizers")
TO_BUILD = ("onnx", "onnx-ir", "gguf", "safetensors", "tokenizers")
TO_DRIVE_GPUS = ("cuda-core", "cuda-bindings", "tokenizers")
NO_GPU = "no GPU is usable here"


@dataclass(frozen=True, slots=True)
class Backend:
    """Whether bundles for a backend can be built and run here, and if not, why and what helps."""

    name: str
    can_build: bool
    can_run: bool
    why_not: tuple[str, ...]
    install: tuple[str, ...]


def backends(packages: tuple[Package, ...], *, has_gpu: bool) -> tuple[Backend, ...]:
    """All that this version has; ``has_gpu``: whether a GPU is usable here."""
    return (
        _onnxruntime(packages),
        _onnxruntime_cuda(packages, has_gpu),
        _tensorrt_rtx(packages, has_gpu),
        _tensorrt(packages, has_gpu),
    )


def _onnxruntime(packages: tuple[Package, ...]) -> Backend:
    """On the CPU, which the package for GPUs serves as well."""
    to_run = bad(packages, TO_RUN)
    if not bad(packages, ("onnxruntime-gpu",)):
        to_run.pop("onnxruntime", None)
    to_build = bad(packages, TO_BUILD)
    return Backend(
        name="onnxruntime",
        can_build=not to_build,
        can_run=not to_run,
        why_not=problems(to_build | to_run),
        install=installs(to_build | to_run),
    )


def _onnxruntime_cuda(packages: tuple[Package, ...], has_gpu: bool) -> Backend:
    """The same bundles on a GPU: ``--device cuda:0``."""
    to_build = bad(packages, TO_BUILD)
    lacking = bad(packages, ("onnxruntime-gpu", *TO_DRIVE_GPUS))
    both = next(package for package in packages if package.name == "onnxruntime").version
    why_not = [*problems(to_build | lacking)]
    if both and "onnxruntime-gpu" not in lacking:
        why_not.append("onnxruntime is installed beside onnxruntime-gpu; keep the latter alone")
    if not has_gpu:
        why_not.append(NO_GPU)
    return Backend(
        name="onnxruntime on CUDA",
        can_build=not to_build,
        can_run=not lacking and not both and has_gpu,
        why_not=tuple(why_not),
        install=installs(to_build | lacking),
    )


def _tensorrt_rtx(packages: tuple[Package, ...], has_gpu: bool) -> Backend:
    """Compiles anywhere, a GPU or not."""
    to_build = bad(packages, (*TO_BUILD, "tensorrt-rtx-cu13"))
    to_run = bad(packages, ("tensorrt-rtx-cu13", *TO_DRIVE_GPUS))
    return Backend(
        name="tensorrt-rtx",
        can_build=not to_build,
        can_run=not to_run and has_gpu,
        why_not=(*problems(to_build | to_run), *(() if has_gpu else (NO_GPU,))),
        install=installs(to_build | to_run),
    )


def _tensorrt(packages: tuple[Package, ...], has_gpu: bool) -> Backend:
    """Compiles on the GPU that will run the engine."""
    to_build = bad(packages, (*TO_BUILD, "tensorrt"))
    to_run = bad(packages, ("tensorrt", *TO_DRIVE_GPUS))
    no_gpu = "it compiles on the GPU that will run the engine, and none is usable here"
    return Backend(
        name="tensorrt",
        can_build=has_gpu and not to_build,
        can_run=has_gpu and not to_run,
        why_not=(*problems(to_build | to_run), *(() if has_gpu else (no_gpu,))),
        install=installs(to_build | to_run),
    )
