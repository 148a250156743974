"""The GPU script, on a GPU that is this machine's memory and threads."""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import itertools
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from engines.errors import DeviceError
from plugins.cuda import measure, registry
from plugins.cuda.args import Args
from plugins.cuda.compiler import KernelImage
from plugins.cuda.host import HostKernel
from plugins.cuda.kernel import Case
from plugins.cuda.trials import DeviceCase, check
from plugins.kv_commit import kernel as kv_commit
from tests.helpers import probe_kernel


class FakeGpu:
    """Arrays are copies, addresses are real, a graph is the call again, and time is made up."""

    name, capability, stream = "threads", "9.0", 5

    def __init__(self) -> None:
        self.num_captures = 0

    def upload(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.copy()

    def download(self, tensor: np.ndarray[Any, Any], like: np.ndarray[Any, Any]) -> Any:
        return tensor.reshape(-1).view(like.dtype).reshape(like.shape).copy()

    def address(self, tensor: np.ndarray[Any, Any]) -> int:
        return int(tensor.ctypes.data)

    def copy(self, target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
        target[:] = source

    def synchronize(self) -> None:
        pass

    def capture(self, work: Callable[[], object]) -> Callable[[], None]:
        self.num_captures += 1
        return lambda: work() and None

    def times_s(self, work, prepare, count: int) -> list[float]:
        prepare()
        work()
        return [5.0, *[2.0] * (count - 1)]


class OnHost:
    """A loaded kernel whose launches take addresses, as a GPU's do."""

    def __init__(self, kernel: HostKernel) -> None:
        self._kernel = kernel

    def launch(self, entry, values, *, num_blocks, num_threads, stream) -> None:
        assert stream == FakeGpu.stream
        in_host_memory = {n for n, each in values.items() if isinstance(each, np.ndarray)}
        assert in_host_memory <= self._kernel.args.by_value
        self._kernel.launch(entry, values, num_blocks=num_blocks, num_threads=num_threads)


@pytest.fixture(scope="module")
def probe(load_host) -> OnHost:
    return OnHost(load_host(probe_kernel.SOURCE, probe_kernel.ARGS))


def test_values_inside_a_launch_stay_this_machines(load_host) -> None:
    """`plugins.put` carries bytes in its struct; uploaded, they would be an address."""
    kernel = registry.kernel("put")
    loaded = OnHost(load_host(kernel.source, kernel.args))
    [first, *_] = kernel.trials
    case, gpu = first.make(np.random.default_rng(0)), FakeGpu()
    assert check(gpu, first, loaded, DeviceCase(gpu, case, kernel.args)) == []


@pytest.mark.parametrize("trial", probe_kernel.KERNEL.trials, ids=lambda each: each.label)
def test_a_right_kernel_is_timed(probe: OnHost, trial) -> None:
    """The replays run from restored arrays, with the tickets that the launch left behind."""
    gpu = FakeGpu()
    found = measure.measure(gpu, probe_kernel.KERNEL, trial, probe)
    assert found.errors == ()
    assert gpu.num_captures == 1
    assert found.kernel_s == 2.0
    assert found.bytes_per_s == trial.num_bytes / 2.0
    assert found.floor_s == trial.num_bytes / 4.8e12
    assert found.torch_s == (2.0 if trial.label == "counts" else None)


def test_tables_hold_device_addresses(load_host) -> None:
    kernel = kv_commit.KERNEL

    def make(rng: np.random.Generator) -> Case:
        case = kv_commit.random_case(
            rng, num_caches=3, shape=(2, 2, 9, 5), dtype="uint8", num_branches=2, num_draft=2
        )
        return dataclasses.replace(case, in_torch=None)

    trial = dataclasses.replace(kernel.trials[0], make=make)
    loaded = OnHost(load_host(kernel.source, kernel.args))
    assert measure.measure(FakeGpu(), kernel, trial, loaded).errors == ()


class Wrong:
    """A kernel that is right until its n-th launch."""

    def __init__(self, kernel: OnHost, good_launches: int) -> None:
        self._kernel = kernel
        self._good = good_launches

    def launch(self, entry, values, **grid) -> None:
        self._kernel.launch(entry, values, **grid)
        self._good -= 1
        if self._good < 0:
            ctypes.memset(values["out"], 77, 4)


@pytest.mark.parametrize(
    ("good_launches", "errors"),
    [(0, ["launched"]), (1, ["first replay", "second replay"]), (2, ["second replay"])],
)
def test_a_wrong_kernel_is_reported_and_not_timed(
    probe: OnHost, good_launches: int, errors: list[str]
) -> None:
    trial = probe_kernel.KERNEL.trials[0]
    wrong = Wrong(probe, good_launches)
    found = measure.measure(FakeGpu(), probe_kernel.KERNEL, trial, wrong)
    assert [line.partition(":")[0] for line in found.errors] == errors
    assert all("out[0] is 1296911693, expected" in line for line in found.errors)
    assert found.kernel_s is found.bytes_per_s is None


@pytest.fixture
def only_probe(probe: OnHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "kernel", lambda _: probe_kernel.KERNEL)
    monkeypatch.setattr(
        measure,
        "compile_kernel",
        lambda kernel, capability: KernelImage(kernel.name, capability, b"", ()),
    )
    monkeypatch.setattr(measure, "TorchGpu", FakeGpu)
    monkeypatch.setattr(measure, "DeviceKernel", lambda *_: probe)


@pytest.mark.usefixtures("only_probe")
def test_the_whole_is_json(capsys) -> None:
    assert measure.main(["probe"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["gpu"], result["capability"], result["num_runs"]) == ("threads", "9.0", 30)
    assert [each["label"] for each in result["measured"]] == ["counts", "best"]
    assert result["left_out"] == []


@pytest.mark.usefixtures("only_probe")
def test_a_wrong_kernel_is_exit_code_1(
    probe: OnHost, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(measure, "DeviceKernel", lambda *_: Wrong(probe, 0))
    assert measure.main(["probe"]) == 1
    assert "launched" in capsys.readouterr().out


@pytest.mark.usefixtures("only_probe")
def test_a_failure_does_not_stop_the_rest(
    probe: OnHost, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """The figures of the other trials would be lost with it, and the GPU's time."""

    class Failing:
        def launch(self, entry, values, **grid) -> None:
            if entry == "probe_histogram":
                raise DeviceError("the driver refused")
            probe.launch(entry, values, **grid)

    monkeypatch.setattr(measure, "DeviceKernel", lambda *_: Failing())
    assert measure.main(["probe"]) == 1
    counts, best = json.loads(capsys.readouterr().out)["measured"]
    assert "the driver refused" in counts["errors"][0]
    assert (best["errors"], best["kernel_s"]) == ([], 2.0)


@pytest.mark.usefixtures("only_probe")
def test_a_kernel_that_does_not_load_does_not_stop_the_rest(
    probe: OnHost, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    loads = iter([DeviceError("no such image")])

    def load(*_: object) -> OnHost:
        for error in loads:
            raise error
        return probe

    monkeypatch.setattr(measure, "DeviceKernel", load)
    assert measure.main(["probe"]) == 1
    counts, best = json.loads(capsys.readouterr().out)["measured"]
    assert "no such image" in counts["errors"][0]
    assert best["errors"] == []


@pytest.mark.usefixtures("only_probe")
def test_a_fault_of_the_gpu_ends_it_and_is_reported() -> None:
    """After an illegal address every call fails; what was found before must not be lost."""

    class Broken(FakeGpu):
        def synchronize(self) -> None:
            raise RuntimeError("an illegal memory access was encountered")

    class Failing:
        def launch(self, *_: object, **__: object) -> None:
            raise DeviceError("launch failed")

    result = measure.measure_all(Broken(), ["probe"], lambda *_: Failing())
    assert "illegal memory access" in result["fault"]
    assert "launch failed" in result["measured"][0]["errors"][0]
    assert result["left_out"] == ["probe best"]


def test_torch_that_fails_costs_no_figure_of_the_kernel(probe: OnHost) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("out of memory")

    whole = probe_kernel.KERNEL.trials[0]
    trial = dataclasses.replace(
        whole, make=lambda rng: dataclasses.replace(whole.make(rng), in_torch=fail)
    )
    found = measure.measure(FakeGpu(), probe_kernel.KERNEL, trial, probe)
    assert found.errors == ("in torch: RuntimeError('out of memory')",)
    assert (found.kernel_s, found.torch_s) == (2.0, None)


@pytest.mark.usefixtures("only_probe")
def test_no_trial_starts_after_the_budget(probe: OnHost) -> None:
    """The whole stays under three minutes on any GPU."""
    clock = map(float, itertools.chain([0, measure.BUDGET_S - 1], itertools.repeat(1e3)))
    result = measure.measure_all(FakeGpu(), ["probe"], lambda *_: probe, lambda: next(clock))
    assert [each["label"] for each in result["measured"]] == ["counts"]
    assert result["left_out"] == ["probe best"]
    assert math.isclose(result["elapsed_s"], 1e3)


def test_without_a_gpu_it_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def refuse() -> None:
        raise DeviceError("no CUDA GPU was found")

    monkeypatch.setattr(measure, "TorchGpu", refuse)
    assert measure.main([]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: no CUDA GPU was found\n")


@pytest.mark.torch
def test_torch_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert measure.main([]) == 2
    assert capsys.readouterr().err.startswith("error: no CUDA GPU was found")


@pytest.mark.torch
@pytest.mark.parametrize("name", registry.NAMES)
def test_the_work_in_torch_runs(name: str) -> None:
    """What a kernel is timed against, here on the CPU; where it does all of the work, it agrees."""
    import torch

    trial = registry.kernel(name).trials[0]
    case = trial.make(np.random.default_rng(0))
    tensors = {
        field: torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value
        for field, value in case.values.items()
    }
    for field, table in case.tables.items():
        tensors[field] = [torch.from_numpy(each.copy()) for each in table]
    if case.in_torch is None:
        return
    result = case.in_torch(tensors)
    if name == "branch_mask":
        assert (result.numpy() == case.expected["mask"][:, 0]).all()
    if name == "kv_commit":
        for index, cache in enumerate(tensors["caches"]):
            assert (cache.numpy() == case.expected[f"caches.{index}"]).all()


@pytest.mark.gpu
@pytest.mark.cuda
@pytest.mark.torch
@pytest.mark.parametrize("name", registry.NAMES)
def test_a_kernel_is_right_on_the_gpu(name: str) -> None:
    from plugins.cuda.compiler import compile_kernel
    from plugins.cuda.device import DeviceKernel
    from plugins.cuda.torch_gpu import TorchGpu

    gpu, kernel = TorchGpu(), registry.kernel(name)
    loaded = DeviceKernel(compile_kernel(kernel, gpu.capability), kernel.args)
    for trial in kernel.trials:
        assert measure.measure(gpu, kernel, trial, loaded).errors == ()


def test_a_load_takes_image_and_args() -> None:
    """`measure_all` is given the real class as a function of these two."""
    parameters = list(inspect.signature(measure.DeviceKernel).parameters)
    assert parameters[:2] == ["image", "args"]
    assert Args.__name__ in str(inspect.signature(measure.DeviceKernel))
