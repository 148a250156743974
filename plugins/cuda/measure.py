"""``python -m plugins.cuda.measure``: every kernel on this machine's GPU, checked and timed.

Each trial runs against its numpy answer three times: launched, and replayed twice from a captured
graph, since what one run leaves behind must not spoil the next. Then it is timed, and so is the
same work in torch. JSON goes to stdout. Exit code 1 says that a kernel was wrong or something
failed, which does not stop the rest; 2 that nothing could be measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from time import monotonic
from typing import Any, Protocol

import numpy as np

from engines.errors import SsdError, as_line
from plugins.cuda import registry
from plugins.cuda.args import Args
from plugins.cuda.compiler import KernelImage, compile_kernel
from plugins.cuda.device import DeviceKernel
from plugins.cuda.kernel import Kernel, Trial
from plugins.cuda.torch_gpu import TorchGpu
from plugins.cuda.trials import DeviceCase, Gpu, Launchable, check, launch

SEED = 20261103
NUM_RUNS = 30
BUDGET_S = 150.0
"""So that the whole stays under three minutes."""


class TimedGpu(Gpu, Protocol):
    """What measuring needs of a GPU; `plugins.cuda.torch_gpu` has the real one."""

    name: str
    capability: str

    def synchronize(self) -> None: ...
    def times_s(
        self, work: Callable[[], object], prepare: Callable[[], None], count: int
    ) -> list[float]: ...


Load = Callable[[KernelImage, Args], Launchable]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One trial.

    entries          what was launched, in order; all of it is timed
    errors           what differs from numpy's answer, and what failed; empty when all is right
    kernel_s         median of `NUM_RUNS` cold runs, in seconds; None when the answer was wrong
    torch_s          the same for the work in torch; None where nothing there compares
    bytes_per_s      bytes that must move / kernel_s
    floor_s          the time of those bytes at 4.8 TB/s
    """

    kernel: str
    label: str
    num_bytes: int
    floor_s: float
    entries: tuple[str, ...]
    errors: tuple[str, ...]
    kernel_s: float | None = None
    torch_s: float | None = None
    bytes_per_s: float | None = None


def measure(gpu: TimedGpu, kernel: Kernel, trial: Trial, loaded: Launchable) -> Measurement:
    """Check one trial and time it."""
    case = trial.make(np.random.default_rng(SEED))
    device = DeviceCase(gpu, case, kernel.args)
    errors = check(gpu, trial, loaded, device)
    kernel_s = torch_s = None
    if not errors:
        queue = partial(launch, gpu, trial, loaded, device)
        kernel_s = median(gpu.times_s(queue, device.restore, NUM_RUNS))
    if case.in_torch is not None:
        in_torch = case.in_torch
        try:
            torch_s = median(
                gpu.times_s(lambda: in_torch(device.tensors), device.restore, NUM_RUNS)
            )
        except Exception as error:
            errors.append(f"in torch: {as_line(repr(error))}")
    return Measurement(
        kernel=kernel.name,
        label=trial.label,
        entries=trial.entries,
        num_bytes=trial.num_bytes,
        floor_s=trial.floor_s,
        errors=tuple(errors),
        kernel_s=kernel_s,
        torch_s=torch_s,
        bytes_per_s=trial.num_bytes / kernel_s if kernel_s else None,
    )


def _failed(kernel: Kernel, trial: Trial, error: Exception) -> Measurement:
    return Measurement(
        kernel=kernel.name,
        label=trial.label,
        entries=trial.entries,
        num_bytes=trial.num_bytes,
        floor_s=trial.floor_s,
        errors=(as_line(repr(error)),),
    )


def measure_all(
    gpu: TimedGpu,
    names: Sequence[str],
    load: Load,
    clock: Callable[[], float] = monotonic,
    budget_s: float = BUDGET_S,
) -> dict[str, Any]:
    """Every trial of the named kernels, as it goes into the JSON.

    A GPU's time is dear: a kernel that does not compile, and a trial that fails, leave the others
    to go on. Only a fault of the GPU itself, after which every call fails, ends it: what was
    measured and the fault are still reported. No trial starts later than ``budget_s``.
    """
    started = clock()
    measured: list[Measurement] = []
    left_out: list[str] = []
    fault: str | None = None
    kernels: dict[str, Launchable] = {}
    for kernel, trial in ((k, t) for k in map(registry.kernel, names) for t in k.trials):
        if fault is not None or clock() - started >= budget_s:
            left_out.append(f"{kernel.name} {trial.label}")
            continue
        try:
            if kernel.name not in kernels:
                image = compile_kernel(kernel, gpu.capability)
                kernels[kernel.name] = load(image, kernel.args)
            measured.append(measure(gpu, kernel, trial, kernels[kernel.name]))
        except Exception as error:
            measured.append(_failed(kernel, trial, error))
            fault = _fault(gpu)
    return {
        "fault": fault,
        "gpu": gpu.name,
        "capability": gpu.capability,
        "num_runs": NUM_RUNS,
        "seed": SEED,
        "elapsed_s": clock() - started,
        "left_out": left_out,
        "measured": [asdict(each) for each in measured],
    }


def _fault(gpu: TimedGpu) -> str | None:
    """What is wrong with the GPU since a trial failed; None where it still answers."""
    try:
        gpu.synchronize()
    except Exception as error:
        return as_line(str(error))
    return None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m plugins.cuda.measure",
        description="Check the CUDA kernels against numpy on this machine's GPU and time them "
        "against torch, in under three minutes; JSON to stdout.",
    )
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=", ".join(registry.NAMES))
    options = parser.parse_args(argv)
    try:
        result = measure_all(TorchGpu(), options.kernels or registry.NAMES, DeviceKernel)
    except SsdError as error:
        sys.stderr.write(f"error: {as_line(str(error))}\n")
        return 2
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    is_right = result["fault"] is None and not any(each["errors"] for each in result["measured"])
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
