"""Which backends can build and run bundles here, and if not, why and what helps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runtime.doctor.packages import Package, bad, installs, problems

TO_RUN = ("onnxruntime", "tokenizers")
TO_BUILD = ("onnx", "onnx-ir", "gguf", "safetensors", "tokenizers")
TO_DRIVE_GPUS = ("cuda-core", "cuda-bindings", "tokenizers")
NO_GPU = "no GPU is usable here"


@dataclass(frozen=True, slots=True)
class Backend:
    """Whether bundles for a backend can be built and run here; if not, why, of each by itself, and
    the commands that help."""

    name: str
    can_build: bool
    can_run: bool
    why_not_build: tuple[str, ...]
    why_not_run: tuple[str, ...]
    install_to_build: tuple[str, ...]
    install_to_run: tuple[str, ...]


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
    return _backend("onnxruntime", bad(packages, TO_BUILD), to_run)


def _onnxruntime_cuda(packages: tuple[Package, ...], has_gpu: bool) -> Backend:
    """The same bundles on a GPU: ``--device cuda:0``."""
    to_run = bad(packages, ("onnxruntime-gpu", *TO_DRIVE_GPUS))
    both = next(package for package in packages if package.name == "onnxruntime").version
    no_run = [] if has_gpu else [NO_GPU]
    if both and "onnxruntime-gpu" not in to_run:
        no_run.insert(0, "onnxruntime is installed beside onnxruntime-gpu; keep the latter alone")
    found = _backend("onnxruntime on CUDA", bad(packages, TO_BUILD), to_run, no_run=no_run)
    if both and "onnxruntime-gpu" in to_run:
        install = (f"pip uninstall -y onnxruntime; {each}" for each in found.install_to_run)
        return replace(found, install_to_run=tuple(install))
    return found


def _tensorrt_rtx(packages: tuple[Package, ...], has_gpu: bool) -> Backend:
    """Compiles anywhere, a GPU or not."""
    return _backend(
        "tensorrt-rtx",
        bad(packages, (*TO_BUILD, "tensorrt-rtx-cu13")),
        bad(packages, ("tensorrt-rtx-cu13", *TO_DRIVE_GPUS)),
        no_run=() if has_gpu else (NO_GPU,),
    )


def _tensorrt(packages: tuple[Package, ...], has_gpu: bool) -> Backend:
    """Compiles on the GPU that will run the engine."""
    return _backend(
        "tensorrt",
        bad(packages, (*TO_BUILD, "tensorrt")),
        bad(packages, ("tensorrt", *TO_DRIVE_GPUS)),
        no_build=() if has_gpu else (f"it compiles on the GPU that will run the engine; {NO_GPU}",),
        no_run=() if has_gpu else (NO_GPU,),
    )


def _backend(
    name: str,
    to_build: dict[str, Package],
    to_run: dict[str, Package],
    *,
    no_build: Sequence[str] = (),
    no_run: Sequence[str] = (),
) -> Backend:
    """``to_build``, ``to_run``: packages that cannot be used; ``no_build``, ``no_run``: what else
    is in the way."""
    # The exporter's extra has all that builds: the cpu one would bring an executor with it.
    of_export = {
        package: replace(found, extra="export") if package in TO_BUILD else found
        for package, found in to_build.items()
    }
    why_not_build = (*problems(to_build), *no_build)
    why_not_run = (*problems(to_run), *no_run)
    return Backend(
        name=name,
        can_build=not why_not_build,
        can_run=not why_not_run,
        why_not_build=why_not_build,
        why_not_run=why_not_run,
        install_to_build=installs(of_export),
        install_to_run=installs(to_run),
    )
