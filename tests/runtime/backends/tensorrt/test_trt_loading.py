"""Which plans are read: those that were built, here, by this release, with these layers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engines.errors import (
    BackendError,
    BundleCorruptError,
    BundleIncompatibleError,
    MissingDependencyError,
    UsageError,
)
from engines.manifest import DRAFT, TARGET, KvLayout
from engines.tensors import DType
from runtime.backends.tensorrt.engine import require_contiguous_slots
from runtime.backends.tensorrt.vendor import load_vendor
from tests.helpers.fake_tensorrt_module import EngineValidity
from tests.helpers.tensorrt_sessions import Bench


def test_a_damaged_plan_is_never_given_to_tensorrt(bench: Bench) -> None:
    """What it makes of one byte that is wrong is up to that byte."""
    manifest = bench.manifest()
    path = bench.folder / TARGET / "engine.plan"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleCorruptError, match=r"engine.plan is not the engine that was built"):
        bench.open(manifest=manifest)
    assert "deserialize_cuda_engine" not in bench.trt.names()


@pytest.mark.parametrize("content", [None, b""])
def test_a_plan_that_cannot_be_read_is_named(bench: Bench, content: bytes | None) -> None:
    manifest = bench.manifest()
    path = bench.folder / TARGET / "engine.plan"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BundleCorruptError, match=r"cannot read .*engine.plan: .*; copy the bundle"):
        bench.open(manifest=manifest)


def test_a_manifest_must_list_its_plan(bench: Bench) -> None:
    manifest = bench.manifest()
    with pytest.raises(BundleCorruptError, match=r"does not list engine.plan"):
        bench.open(manifest=replace(manifest, files=()))
    with pytest.raises(BundleCorruptError, match="holds a graph and no compiled engine"):
        bench.open(manifest=replace(manifest, plan=None))


def test_a_plan_of_another_release_is_refused_before_it_is_read(bench: Bench) -> None:
    manifest = bench.manifest()
    assert manifest.plan is not None
    other = replace(manifest, plan=replace(manifest.plan, builder="tensorrt 10.15.1"))
    with pytest.raises(
        BundleIncompatibleError, match=r"compiled by tensorrt 10.15.1, which alone .* 11.4.0.106"
    ):
        bench.open(manifest=other)
    assert bench.trt.names() == []


def test_a_plan_of_another_gpu_is_refused_with_both(tmp_path: Path) -> None:
    bench = Bench(tmp_path, capabilities=("8.6", "8.9"))
    with pytest.raises(
        BundleIncompatibleError,
        match=r"compute capability 8.6 8.9, and Simulated GPU has 9.0; .*--compute-capability 9.0",
    ):
        bench.open()
    bench.close()


def test_a_plan_whose_layer_means_something_else_is_refused(tmp_path: Path) -> None:
    """A layer of the same name and version may have judged otherwise when the plan was built."""

    def edit(plan: dict[str, Any]) -> None:
        plan["meaning"] = "0123456789abcdef"

    bench = Bench(tmp_path, edit=edit)
    with pytest.raises(
        BundleIncompatibleError, match=r"another form of ssd::Verify@1 \(0123456789abcdef, expected"
    ):
        bench.open()
    bench.close()


def test_a_layer_that_this_release_lacks_is_named(bench: Bench) -> None:
    manifest = bench.manifest()
    assert manifest.plan is not None
    other = replace(manifest, plan=replace(manifest.plan, plugins=("ssd::Verify@9",)))
    with pytest.raises(BundleIncompatibleError, match=r"needs ssd::Verify@9, and this release has"):
        bench.open(manifest=other)


def test_layers_are_registered_before_the_plan_is_read(bench: Bench) -> None:
    bench.open(DRAFT)
    assert bench.trt.get_plugin_registry().get_creator("Sample", "1", "ssd") is not None


def test_what_tensorrt_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    def edit(plan: dict[str, Any]) -> None:
        plan["product"] = "tensorrt 11.3.9"

    bench = Bench(tmp_path, edit=edit)
    with pytest.raises(BackendError, match=r"deserialize_cuda_engine \(\d+ bytes\).*version tag"):
        bench.open()
    bench.close()


@pytest.mark.parametrize("is_refused", [True, False])
def test_tensorrt_rtx_is_asked_about_the_header_and_not_obeyed(
    tmp_path: Path, is_refused: bool
) -> None:
    """Releases call plans invalid that they then read; of one that is refused it tells why."""
    bench = Bench(tmp_path, "tensorrt_rtx")
    session = bench.session()
    bench.trt.fail("get_engine_validity", (EngineValidity.INVALID, 2 + 4))
    verdict = r"invalid \(unsupported cc, old cuda driver\)"
    if is_refused:
        bench.trt.fail("deserialize_cuda_engine", None, "Error Code 1: Serialization (no)")
        with pytest.raises(BackendError, match=f"its header is {verdict}.*: no; "):
            session.load()
    else:
        session.load()
        assert len(bench.notes) == 1
        assert "TensorRT-RTX calls the target engine invalid (unsupp" in bench.notes[0]
    bench.close()


def test_a_valid_header_is_no_news(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "tensorrt_rtx")
    bench.open()
    assert bench.notes == []
    assert bench.trt.names("get_engine_validity") == ["get_engine_validity"]
    bench.close()


@pytest.mark.parametrize(("scratch", "is_good"), [(24, True), (28, True), (25, False)])
def test_every_slot_must_begin_where_tensorrt_takes_an_address(
    bench: Bench, scratch: int, is_good: bool
) -> None:
    manifest = bench.manifest(DRAFT)
    kv = KvLayout(1, 1, 64, DType.FLOAT16, scratch, 176)
    odd = replace(manifest, kv=kv, lengths=(kv.rows,), plan=None)
    require_contiguous_slots(odd, 1, 256)
    if is_good:
        require_contiguous_slots(odd, 2, 256)
        return
    with pytest.raises(BundleIncompatibleError, match=r"has 25728 bytes.*multiple of 16"):
        require_contiguous_slots(odd, 2, 256)


def test_a_vendor_is_loaded_by_the_name_of_a_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="'onnxruntime' is no TensorRT"):
        load_vendor("onnxruntime")
    monkeypatch.setitem(__import__("sys").modules, "tensorrt", None)
    load_vendor.cache_clear()
    with pytest.raises((MissingDependencyError, BackendError), match=r"ssd-trt\[tensorrt\]"):
        load_vendor("tensorrt")
