"""Kernels that TensorRT-RTX compiled are kept beside the plan, and never trusted blindly."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest

from engines.manifest import TARGET
from runtime.backends.api import CallShape
from runtime.backends.tensorrt.runtime_cache import KernelFile, cache_path
from tests.helpers.tensorrt_sessions import Bench

SHAPES = [CallShape(0, 3, 1, 1), CallShape(0, 3, 5, 5)]


class Cache:
    """An ``IRuntimeCache`` that takes what it is given."""

    def __init__(self, content: bytes | None = b"kernels", fits: bool = True) -> None:
        self.content = content
        self.fits = fits
        self.given: bytes | None = None

    def serialize(self) -> bytes | None:
        return self.content

    def deserialize(self, blob: bytes) -> bool:
        self.given = blob
        return self.fits


def use(folder: Path, capability: tuple[int, int] = (9, 0)) -> Bench:
    """One process: load, run two shapes, close."""
    name = ".".join(map(str, capability))
    bench = Bench(folder, "tensorrt_rtx", capabilities=(name,))
    bench.cuda.capability = capability
    session = bench.open()
    session._stream.call(lambda: session.warm_up(SHAPES))
    bench.close()
    assert bench.cuda.misuses == []
    return bench


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / TARGET).iterdir() if path.suffix == ".kernels")


def test_a_second_start_compiles_nothing(tmp_path: Path) -> None:
    assert use(tmp_path).trt.num_compiled == 2
    assert kept(tmp_path) == ["engine.plan.Simulated-GPU.kernels"]
    again = use(tmp_path)
    assert again.trt.num_compiled == 0
    assert again.notes == []


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    use(tmp_path)
    path = tmp_path / TARGET / "engine.plan.Simulated-GPU.kernels"
    before = path.stat()
    assert use(tmp_path).notes == []
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_kernels_of_another_gpu_are_replaced_with_a_note(tmp_path: Path) -> None:
    """TensorRT-RTX compares GPU, driver and release, and answers false."""
    use(tmp_path)
    other = use(tmp_path, capability=(8, 9))
    assert other.trt.num_compiled == 2
    assert len(other.notes) == 1
    assert "kernels is of another" in other.notes[0]
    assert use(tmp_path, capability=(8, 9)).trt.num_compiled == 0


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda _content: b"", "is damaged"),
        (lambda content: content[:-1], "is damaged"),
        (lambda content: content[:-2] + b"xx", "is damaged"),
        (lambda _content: b"\x00" * 5000, "is damaged"),
        (lambda content: b"{}\n" + content, "is damaged"),
        (lambda content: content.replace(b"runtime cache 1", b"runtime cache 2"), "another engine"),
    ],
)
def test_a_damaged_file_is_never_given_to_tensorrt(tmp_path: Path, damage, why: str) -> None:
    path, notes = tmp_path / "file.kernels", []
    KernelFile(path, "plan", notes.append).save(Cache())
    path.write_bytes(damage(path.read_bytes()))
    cache = Cache()
    KernelFile(path, "plan", notes.append).load(cache)
    assert cache.given is None
    assert len(notes) == 1
    assert why in notes[0]


def test_kernels_of_another_plan_are_left_alone(tmp_path: Path) -> None:
    path, notes, cache = tmp_path / "file.kernels", [], Cache()
    KernelFile(path, "one", notes.append).save(Cache())
    KernelFile(path, "other", notes.append).load(cache)
    assert cache.given is None
    assert notes == [f"{path} is of another engine; its kernels are compiled anew and replaced"]


def test_what_was_saved_is_given_back(tmp_path: Path) -> None:
    path, notes, cache = tmp_path / "file.kernels", [], Cache()
    KernelFile(path, "plan", notes.append).save(Cache(b"\n{} kernels"))
    KernelFile(path, "plan", notes.append).load(cache)
    assert (cache.given, notes) == (b"\n{} kernels", [])
    assert os.listdir(tmp_path) == ["file.kernels"]


def test_no_file_is_no_news(tmp_path: Path) -> None:
    notes: list[str] = []
    KernelFile(tmp_path / "file.kernels", "plan", notes.append).load(Cache())
    assert notes == []


@pytest.mark.parametrize("call", ["replace", "open"])
def test_a_folder_that_cannot_be_written_is_survived(tmp_path: Path, call: str) -> None:
    path, notes = tmp_path / "file.kernels", []
    error = PermissionError(13, "Permission denied")
    with mock.patch.object(Path, call, side_effect=error):
        KernelFile(path, "plan", notes.append).save(Cache())
    assert os.listdir(tmp_path) == []
    assert notes == [
        (
            f"cannot write {path} (Permission denied), so the next start compiles the same kernels "
            "again; make the bundle's folder writable once"
        )
    ]


def test_a_file_that_cannot_be_read_is_survived(tmp_path: Path) -> None:
    path, notes = tmp_path / "file.kernels", []
    path.mkdir()
    KernelFile(path, "plan", notes.append).load(Cache())
    assert notes == [f"cannot read {path} (Is a directory); kernels are compiled anew"]


def test_a_cache_that_gives_nothing_is_survived(tmp_path: Path) -> None:
    path, notes = tmp_path / "file.kernels", []
    KernelFile(path, "plan", notes.append).save(Cache(None))
    assert not path.exists()
    assert notes == [f"TensorRT-RTX gave no kernels to keep in {path}"]


def test_a_session_closes_though_its_kernels_cannot_be_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "tensorrt_rtx")
    session = bench.open()
    session._stream.call(lambda: session.warm_up(SHAPES))
    with mock.patch.object(KernelFile, "save", side_effect=RuntimeError("CUDA_ERROR_UNKNOWN")):
        bench.close()
    assert "~Runtime" in bench.trt.names()
    assert "were not kept: CUDA_ERROR_UNKNOWN" in bench.notes[0]


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA GeForce RTX 5090", "engine.plan.NVIDIA-GeForce-RTX-5090.kernels"),
        ("../../x\n", "engine.plan...-..-x.kernels"),
    ],
)
def test_the_name_of_a_gpu_leads_nowhere_else(tmp_path: Path, gpu: str, name: str) -> None:
    found = cache_path(tmp_path / "engine.plan", gpu)
    assert (found.parent, found.name) == (tmp_path, name)


def test_standard_tensorrt_keeps_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.open()
    bench.close()
    assert kept(tmp_path) == []
