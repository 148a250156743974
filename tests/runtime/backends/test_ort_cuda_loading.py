"""What stops engines of ONNX Runtime's CUDA provider from loading: operators, options, packages."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import onnxruntime
import pytest

from engines.errors import BackendError, MissingDependencyError, SsdError
from runtime.backends import onnxruntime_gpu_package as package
from runtime.backends.onnxruntime_cuda import ASYNC_RUN, OrtCudaSession
from runtime.backends.onnxruntime_profile import nodes_on_cpu
from runtime.device.cuda import CudaDevice
from tests.helpers.fake_cuda import EAGER, FakeCuda
from tests.helpers.fake_ort_gpu import FakeBinding, FakeOrt
from tests.helpers.ort_sessions import opened
from tests.helpers.tiny_bundle import tiny_bundle


def loading_fails(ort: FakeOrt, error: type[SsdError], match: str) -> None:
    with opened(ort.cuda, ort=ort) as (session, _, _, _), pytest.raises(error, match=match):
        session.load()


def test_operators_without_a_cuda_kernel_are_refused_by_name() -> None:
    ort = FakeOrt(FakeCuda(EAGER))
    ort.nodes_on_cpu = ["TensorScatter", "CumSum", "CumSum"]
    loading_fails(ort, BackendError, "no CUDA kernel for CumSum, TensorScatter of .*model.onnx")


def test_a_lost_profile_is_no_good_sign() -> None:
    ort = FakeOrt(FakeCuda(EAGER))
    ort.is_profile_lost = True
    loading_fails(ort, BackendError, "left no profile")


def test_a_provider_that_does_not_start_is_told() -> None:
    ort = FakeOrt(FakeCuda(EAGER))
    ort.starts = False
    loading_fails(ort, BackendError, r"did not start.*pip install 'onnxruntime-gpu\[cuda,cudnn\]")


@pytest.mark.parametrize("option", ["user_compute_stream", "use_tf32", "device_id"])
def test_an_option_that_has_no_effect_is_told(option: str) -> None:
    ort = FakeOrt(FakeCuda(EAGER, num_gpus=2))
    ort.ignored = {option}
    bundle = tiny_bundle()
    device = CudaDevice(1, core=ort.cuda)
    session = OrtCudaSession(
        bundle.path / "target",
        bundle.target,
        device,
        device.create_stream("target"),
        num_slots=1,
        module=ort,
    )
    with pytest.raises(BackendError, match=f"its option {option} is "):
        session.load()
    session.close()
    device.close()


def test_the_wrong_package_is_told_with_the_command_that_mends_it() -> None:
    cuda = FakeCuda(EAGER)
    loading_fails(
        FakeOrt(cuda, "1.32.0", has_cuda=False),
        BackendError,
        "1.32.0 is built without the CUDA provider.*pip uninstall -y onnxruntime onnxruntime-gpu",
    )
    loading_fails(FakeOrt(cuda, "1.30.2"), BackendError, "1.30.2 is older than 1.31")


def test_two_packages_over_each_other_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package.importlib.metadata, "version", lambda _name: "1.31.0")
    with pytest.raises(BackendError, match=r"1.31.0 and onnxruntime-gpu 1.31.0 are both installed"):
        package.import_onnxruntime_gpu()


def test_no_package_at_all_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependencyError, match="onnxruntime-gpu"):
        package.import_onnxruntime_gpu()


def test_nothing_is_printed_while_libraries_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--json promises one object on stdout and nothing else."""
    ort = FakeOrt(FakeCuda(EAGER))
    monkeypatch.setitem(sys.modules, "onnxruntime", ort)
    monkeypatch.setattr(package, "installed", lambda: ["onnxruntime-gpu 1.31.0"])
    assert package.import_onnxruntime_gpu() is ort
    assert capsys.readouterr().out == ""


def test_shapes_on_the_cpu_are_no_fault() -> None:
    def node(name: str, provider: str) -> dict[str, Any]:
        return {
            "cat": "Node",
            "args": {"op_name": name, "provider": f"{provider}ExecutionProvider"},
        }

    shapes = [node("Shape", "CPU"), node("Max", "CPU"), node("MatMul", "CUDA")]
    copies = [node("MemcpyToHost", "CUDA"), node("MemcpyFromHost", "CUDA")]
    assert nodes_on_cpu(shapes) == []
    assert nodes_on_cpu([*shapes, *copies, node("TopK", "CPU")]) == ["TopK"]
    assert nodes_on_cpu([*shapes, *copies]) == ["Max", "Shape"]
    assert nodes_on_cpu(copies) == ["an operator that wants an input on the CPU"]


def test_onnxruntime_has_every_name_that_is_used() -> None:
    """The package for CPUs has them too: what differs is what the CUDA provider makes of them."""
    options = onnxruntime.SessionOptions()
    for name in ("enable_mem_pattern", "enable_profiling", "profile_file_prefix"):
        assert hasattr(options, name)
    onnxruntime.RunOptions().add_run_config_entry(*ASYNC_RUN)
    session, binding = onnxruntime.InferenceSession, onnxruntime.IOBinding
    for name in ("end_profiling", "get_provider_options", "io_binding", "run_with_iobinding"):
        assert callable(getattr(session, name))
    assert callable(onnxruntime.preload_dlls)
    for fake, real in (
        (FakeBinding.bind_input, binding.bind_input),
        (FakeBinding.bind_output, binding.bind_output),
    ):
        assert list(inspect.signature(fake).parameters) == list(inspect.signature(real).parameters)
