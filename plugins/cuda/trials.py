"""Whether a kernel is right on a GPU: its trials against numpy, launched and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from plugins.cuda.args import Args
from plugins.cuda.kernel import Case, Trial, wrong_outputs


class Gpu(Protocol):
    """What a trial needs of a GPU: memory in numpy's layout, a stream, graphs.

    `plugins.cuda.torch_gpu` has one through torch.
    """

    @property
    def stream(self) -> int: ...
    def upload(self, array: npt.NDArray[Any]) -> Any: ...
    def download(self, tensor: Any, like: npt.NDArray[Any]) -> npt.NDArray[Any]: ...
    def address(self, tensor: Any) -> int: ...
    def copy(self, target: Any, source: Any) -> None: ...
    def capture(self, work: Callable[[], object]) -> Callable[[], None]: ...


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


class DeviceCase:
    """A case's arrays on a GPU, twice: those that launches work on, and what they held at first.

    tensors    numbers and tensors by field, for torch
    addresses  numbers and addresses by field, for a launch
    """

    def __init__(self, gpu: Gpu, case: Case, args: Args) -> None:
        self._gpu, self._case = gpu, case
        arrays = {
            name: value
            for name, value in case.values.items()
            if isinstance(value, np.ndarray) and name not in args.by_value
        }
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


def launch(gpu: Gpu, trial: Trial, loaded: Launchable, device: DeviceCase) -> None:
    """Queue a trial's entries."""
    for entry in trial.entries:
        loaded.launch(
            entry,
            device.addresses,
            num_blocks=trial.num_blocks,
            num_threads=trial.num_threads,
            stream=gpu.stream,  # asked each time: in capture it is another one
        )


def check(gpu: Gpu, trial: Trial, loaded: Launchable, device: DeviceCase) -> list[str]:
    """What is wrong with a trial's outputs, a line each: of a launch, and of two replays of it from
    a captured graph, since what one run leaves behind must not spoil the next."""
    launch(gpu, trial, loaded, device)
    errors = [f"launched: {line}" for line in device.wrong_outputs()]
    if errors:
        return errors
    replay = gpu.capture(lambda: launch(gpu, trial, loaded, device))
    for run in ("first", "second"):
        device.restore()
        replay()
        errors += [f"{run} replay: {line}" for line in device.wrong_outputs()]
    return errors
