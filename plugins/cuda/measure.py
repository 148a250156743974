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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from time import monotonic
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engines.errors import SsdError, as_line
from plugins.cuda import registry
from plugins.cuda.args import Args
from plugins.cuda.compiler import KernelImage, compile_kernel
from plugins.cuda.device import DeviceKernel
from plugins.cuda.kernel import Case, Kernel, Trial, wrong_outputs
from plugins.cuda.torch_gpu import TorchGpu

SEED = 20261103
NUM_RUNS = 30
BUDGET_S = 150.0
"""No trial starts later than this, so that the whole stays under three minutes."""


class Gpu(Protocol):
    """What measuring needs of a GPU; `plugins.cuda.torch_gpu` has the real one."""

    name: str
    capability: str

    @property
    def stream(self) -> int: ...
    def upload(self, array: npt.NDArray[Any]) -> Any: ...
    def download(self, tensor: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
    def address(self, tensor: Any) -> int: ...
    def copy(self, target: Any, source: Any) -> None: ...
    def synchronize(self) -> None: ...
    def capture(self, work: Callable[[], object]) -> Callable[[], None]: ...
    def times_s(
        self, work: Callable[[], object], prepare: Callable[[], None], count: int
    ) -> list[float]: ...


class Launchable(Protocol):
    """A loaded kernel: `plugins.cuda.device.DeviceKernel`."""

    def launch(
        self,
        entry: str,
        values: Mapping[str, Any],
        *,
        num_blocks: int,
        num_threads: int,
        stream: int,
    ) -> None: ...


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


def measure(gpu: Gpu, kernel: Kernel, trial: Trial, loaded: Launchable) -> Measurement:
    """Check one trial and time it."""
    case = trial.make(np.random.default_rng(SEED))
    device = _DeviceCase(gpu, case)

    def launch() -> None:
        for entry in trial.entries:
            loaded.launch(
                entry,
                device.addresses,
                num_blocks=trial.num_blocks,
                num_threads=trial.num_threads,
                stream=gpu.stream,  # asked each time: in capture it is another one
            )

    errors = _check(device, launch, gpu)
    kernel_s = torch_s = None
    if not errors:
        kernel_s = median(gpu.times_s(launch, device.restore, NUM_RUNS))
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


def _check(device: _DeviceCase, launch: Callable[[], None], gpu: Gpu) -> list[str]:
    launch()
    errors = [f"launched: {line}" for line in device.wrong_outputs()]
    if errors:
        return errors
    replay = gpu.capture(launch)
    for run in ("first", "second"):
        device.restore()
        replay()
        errors += [f"{run} replay: {line}" for line in device.wrong_outputs()]
    return errors


class _DeviceCase:
    """A case's arrays on a GPU, twice: those that launches work on, and what they held at first.

    tensors    numbers and tensors by field, for torch
    addresses  numbers and addresses by field, for a launch
    """

    def __init__(self, gpu: Gpu, case: Case) -> None:
        self._gpu, self._case = gpu, case
        arrays = {n: v for n, v in case.values.items() if isinstance(v, np.ndarray)}
        for name, table in case.tables.items():
            arrays.update({f"{name}.{index}": array for index, array in enumerate(table)})
        self._initial = {name: gpu.upload(array) for name, array in arrays.items()}
        self._current = {name: gpu.upload(array) for name, array in arrays.items()}
        self.tensors: dict[str, Any] = {**case.values, **self._current}
        self.addresses: dict[str, Any] = dict(case.values)
        for name in arrays:
            if name in case.values:
                self.addresses[name] = gpu.address(self._current[name])
        for name, table in case.tables.items():
            members = [self._current[f"{name}.{index}"] for index in range(len(table))]
            self._current[name] = gpu.upload(
                np.array([gpu.address(each) for each in members], np.uint64)
            )
            self.tensors[name] = members
            self.addresses[name] = gpu.address(self._current[name])

    def restore(self) -> None:
        for name, initial in self._initial.items():
            self._gpu.copy(self._current[name], initial)

    def wrong_outputs(self) -> list[str]:
        found = {
            name: self._gpu.download(self._current[name], expected)
            for name, expected in self._case.expected.items()
        }
        return wrong_outputs(self._case, found)


def measure_all(
    gpu: Gpu, names: Sequence[str], load: Load, clock: Callable[[], float] = monotonic
) -> dict[str, Any]:
    """Every trial of the named kernels, as it goes into the JSON.

    A GPU's time is dear: a kernel that does not compile, and a trial that fails, leave the others
    to go on. Only a fault of the GPU itself, after which every call fails, ends it: what was
    measured and the fault are still reported.
    """
    started = clock()
    measured: list[Measurement] = []
    left_out: list[str] = []
    fault: str | None = None
    kernels: dict[str, Launchable] = {}
    for kernel, trial in ((k, t) for k in map(registry.kernel, names) for t in k.trials):
        if fault is not None or clock() - started >= BUDGET_S:
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


def _fault(gpu: Gpu) -> str | None:
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
