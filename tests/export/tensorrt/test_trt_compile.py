from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engines.errors import BackendError, UsageError
from engines.profiles import ShapeProfile, Span
from export.tensorrt.compile import compile_engine
from export.tensorrt.plan_header import read_header
from export.tensorrt.vendor import Vendor, load
from tests.export.tensorrt.fake_compiler import PLAN, FakeCompiler
from tests.export.tensorrt.graphs import ATTENTION, write

SPAN = Span(1, 2, 4)
PROFILE = ShapeProfile("step", SPAN, SPAN, SPAN, Span(1, 64, 128))


def standard(trt: FakeCompiler) -> Vendor:
    return Vendor(trt, "tensorrt", trt.__version__, is_rtx=False)


def rtx(trt: FakeCompiler) -> Vendor:
    members = {"NONE": 0, "SM75": 75, "SM89": 89, "SM120": 120}
    trt.ComputeCapability = SimpleNamespace(__members__=members)  # type: ignore[attr-defined]
    return Vendor(trt, "tensorrt-rtx", trt.__version__, is_rtx=True)


def compiled(vendor: Vendor, folder: Path, **changes: Any) -> bytes:
    options: dict[str, Any] = {"profiles": [PROFILE], "capabilities": [], "precision": "fp16"}
    return compile_engine(vendor, write(folder, ATTENTION), **{**options, **changes})


def test_standard_tensorrt_gets_profiles_limits_and_no_capabilities(tmp_path: Path) -> None:
    trt = FakeCompiler()
    assert compiled(standard(trt), tmp_path, profiles=[PROFILE, PROFILE]) == PLAN
    config = trt.config
    assert config is not None
    assert config.limits == {"workspace": 2**30}
    assert config.num_compute_capabilities == 0
    assert len(config.profiles) == 2
    assert config.profiles[0]["mask"] == ((1, 1, 1, 1), (2, 1, 2, 64), (4, 1, 4, 128))
    assert config.times is None


def test_rtx_is_told_every_capability(tmp_path: Path) -> None:
    trt = FakeCompiler("1.7.1.116")
    compiled(rtx(trt), tmp_path, capabilities=["8.9", "12.0"])
    assert trt.config is not None
    assert trt.config.capabilities == [89, 120]
    assert trt.config.limits["workspace"] >= 2**40, "it would refuse large batches"
    trt.refused_capabilities = {120}
    with pytest.raises(BackendError, match=r"refused compute capability 12\.0"):
        compiled(rtx(trt), tmp_path, capabilities=["12.0"])


@pytest.mark.parametrize(("precision", "cleared"), [("fp32", ["tf32"]), ("fp16", [])])
def test_float32_engines_multiply_in_float32(
    tmp_path: Path, precision: str, cleared: list[str]
) -> None:
    """TF32 is on unless told otherwise, and keeps 10 of 23 bits."""
    trt = FakeCompiler()
    compiled(standard(trt), tmp_path, precision=precision)
    assert trt.config is not None
    assert trt.config.cleared == cleared


def test_kernel_times_are_kept_for_standard_tensorrt(tmp_path: Path) -> None:
    times = tmp_path / "deep" / "times.cache"
    for expected in (b"+ times", b"+ times+ times"):
        compiled(standard(FakeCompiler()), tmp_path, timing_cache=times)
        assert times.read_bytes() == expected
    assert [path.name for path in times.parent.iterdir()] == ["times.cache"]


def test_kernel_times_are_never_given_to_rtx(tmp_path: Path) -> None:
    """It measures none, and would ask for a GPU."""
    trt = FakeCompiler("1.7.1.116")
    compiled(rtx(trt), tmp_path, capabilities=["8.9"], timing_cache=tmp_path / "times")
    assert trt.config is not None
    assert trt.config.times is None
    assert not (tmp_path / "times").exists()


def test_times_that_cannot_be_kept_do_not_cost_the_engine(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert compiled(standard(FakeCompiler()), tmp_path, timing_cache=tmp_path / "file" / "t")


def test_a_failed_build_tells_tensorrts_first_reason(tmp_path: Path) -> None:
    trt = FakeCompiler()
    trt.says = [
        "Error Code 9: Skipping tactic (out of memory. In f at a.cpp:1)",
        "Error Code 10: Internal Error (Could not find any implementation)",
    ]
    trt.on_build = lambda _monitor: None
    with pytest.raises(BackendError, match=r"could not compile .*model.onnx: out of memory$"):
        compiled(standard(trt), tmp_path)


def test_a_machine_without_a_driver_is_one_line(tmp_path: Path) -> None:
    trt = FakeCompiler()
    trt.has_builder = False
    with pytest.raises(BackendError, match="cannot compile here: CUDA initialization failure"):
        compiled(standard(trt), tmp_path)


def test_a_profile_outside_the_cache_is_refused(tmp_path: Path) -> None:
    """T15: before TensorRT answers with a message about kOPT."""
    long = ShapeProfile("step", SPAN, SPAN, SPAN, Span(1, 64, 256))
    with pytest.raises(UsageError, match="attends up to 256 rows, the cache cache has 128"):
        compiled(standard(FakeCompiler()), tmp_path, profiles=[PROFILE, long])


def test_what_a_listener_raises_ends_the_build(tmp_path: Path) -> None:
    trt = FakeCompiler()

    def build(monitor: Any) -> bytes | None:
        monitor.phase_start("Building engine", None, 2)
        return PLAN if monitor.step_complete("Building engine", 0) else None

    def stop(_what: str, done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    trt.on_build = build
    assert compiled(standard(trt), tmp_path) == PLAN
    with pytest.raises(KeyboardInterrupt):
        compiled(standard(trt), tmp_path, progress=stop)


def header(version: tuple[int, ...], gpus: int, num_bytes: int) -> bytes:
    """A plan as TensorRT-RTX 1.4 to 1.7 begin it."""
    start = b"vtrt" + bytes(12) + num_bytes.to_bytes(8, "little") + bytes(version) + b"vtrt"
    return start + gpus.to_bytes(8, "little") + bytes(60)


def test_a_plans_header_says_who_wrote_it_and_for_what() -> None:
    found = read_header(header((1, 7, 1, 116), 0x18, 100))
    assert found is not None
    assert (found.version, found.num_bytes) == ("1.7.1.116", 100)
    assert found.capabilities == ("8.9", "12.0")
    assert read_header(b"ptrt" + bytes(60)) is None
    assert read_header(b"vtrt") is None


@pytest.mark.parametrize(
    ("version", "gpus", "num_bytes", "is_sound"),
    [
        ((1, 7, 1, 116), 0x08, 100, True),
        ((1, 7, 1, 116), 0x18, 100, False),
        ((1, 7, 1, 116), 0x08, 99, False),
        ((2, 0, 0, 1), 0x18, 99, True),  # another layout, for all we know
    ],
)
def test_a_plan_that_contradicts_what_was_asked_for_is_refused(
    tmp_path: Path, version: tuple[int, ...], gpus: int, num_bytes: int, is_sound: bool
) -> None:
    trt = FakeCompiler("1.7.1.116")
    trt.on_build = lambda _monitor: header(version, gpus, num_bytes)
    if is_sound:
        assert compiled(rtx(trt), tmp_path, capabilities=["8.9"])
        return
    with pytest.raises(BackendError, match=r"gave a plan of 100 bytes .*expected .* for 8\.9"):
        compiled(rtx(trt), tmp_path, capabilities=["8.9"])


@pytest.mark.rtx
def test_rtx_compiles_for_two_gpus_without_a_word_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its parser warns of every int64 input, and its library of the missing driver."""
    vendor, steps = load("tensorrt-rtx"), []
    plan = compiled(
        vendor,
        tmp_path,
        capabilities=["8.9", "12.0"],
        progress=lambda _what, done, _total: steps.append(done),
    )
    found = read_header(plan)
    assert found is not None
    assert (found.version, found.num_bytes) == (vendor.version, len(plan))
    assert found.capabilities == ("8.9", "12.0")
    assert steps[0] == 0
    assert steps[-1] == 100
    assert len(steps) > 5
    assert capfd.readouterr() == ("", "")


@pytest.mark.rtx
def test_rtx_stops_when_a_listener_raises(tmp_path: Path) -> None:
    def stop(_what: str, done: int, _total: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(load("tensorrt-rtx"), tmp_path, capabilities=["8.9"], progress=stop)


@pytest.mark.rtx
def test_rtx_refuses_bfloat16_on_7_5_with_its_reason(tmp_path: Path) -> None:
    """The options refuse it earlier; this is what stands behind them."""
    path = write(tmp_path, ATTENTION.replace("float16", "bfloat16"))
    with pytest.raises(BackendError, match="sm75"):
        compile_engine(
            load("tensorrt-rtx"), path, profiles=[PROFILE], capabilities=["7.5"], precision="bf16"
        )
