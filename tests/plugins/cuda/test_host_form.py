"""Building and launching the host form: what it refuses, and what it keeps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engines.errors import BackendError, UsageError
from plugins import cxx
from plugins.cuda import host
from plugins.cuda.args import Args, Array, Number
from tests.helpers.probe_kernel import FAULTY, FAULTY_ARGS

# What SSD_KERNEL makes of a kernel, by hand: it compiles in no time.
SMALL = """
struct SmallArgs { int* out; int value; };
extern "C" int small(const SmallArgs* args, int, int, int) { *args->out = args->value; return 0; }
extern "C" int small_args_size() { return sizeof(SmallArgs); }
"""
SMALL_ARGS = Args(Array("out", ("int32",), is_output=True), Number("value"))


@pytest.fixture(scope="module")
def faulty(load_host) -> host.HostKernel:
    return load_host(FAULTY, FAULTY_ARGS)


def launch_faulty(faulty: host.HostKernel, entry: str, num_threads: int = 4) -> int:
    out = np.zeros(4, np.int32)
    faulty.launch(entry, {"out": out}, num_blocks=2, num_threads=num_threads)
    return int(out[0])


def test_threads_that_sync_unequally_often_are_an_error(faulty) -> None:
    """On a GPU such a block hangs or goes on with half of its data."""
    with pytest.raises(BackendError, match=r"faulty_diverging.*unequally often"):
        launch_faulty(faulty, "faulty_diverging")


def test_a_block_has_48_kib_of_shared_memory(faulty) -> None:
    with pytest.raises(BackendError, match="48 KiB"):
        launch_faulty(faulty, "faulty_greedy")


def test_a_misaligned_vector_is_an_error(faulty) -> None:
    with pytest.raises(BackendError, match="no multiple of 16"):
        launch_faulty(faulty, "faulty_misaligned")


def test_a_block_has_no_more_threads_than_compiled_for(faulty) -> None:
    for num_threads in (0, 5):
        with pytest.raises(BackendError, match="so many threads"):
            launch_faulty(faulty, "faulty_unwritten", num_threads)


def test_shared_memory_starts_as_garbage_in_every_block(faulty) -> None:
    """A kernel that counts on zeros there would work until a GPU had used the memory before."""
    value = np.frombuffer(b"\xa5" * 4, np.int32)[0]
    assert launch_faulty(faulty, "faulty_unwritten") == value


@pytest.mark.usefixtures("own_cache")
def test_an_array_may_be_given_by_its_address(source: Path) -> None:
    """As a launch on a GPU gives it, so that one caller serves both."""
    out = np.zeros(1, np.int32)
    kernel = host.load(source, SMALL_ARGS)
    kernel.launch("small", {"out": out.ctypes.data, "value": 7}, num_blocks=1, num_threads=1)
    assert out[0] == 7


def test_an_unknown_entry_is_refused(faulty) -> None:
    with pytest.raises(UsageError, match="no entry faulty_typo"):
        launch_faulty(faulty, "faulty_typo")


def test_a_struct_of_another_size_is_refused(load_host) -> None:
    wrong = load_host(FAULTY, Args(Array("out"), Number("extra")))
    with pytest.raises(BackendError, match="8 bytes, its declaration 16"):
        wrong.launch("faulty_diverging", {"out": None, "extra": 0}, num_blocks=1, num_threads=1)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "small.cu"
    path.write_text(SMALL)
    return path


def value_of(source: Path) -> int:
    out = np.zeros(1, np.int32)
    kernel = host.load(source, SMALL_ARGS)
    kernel.launch("small", {"out": out, "value": 7}, num_blocks=1, num_threads=1)
    return int(out[0])


@pytest.mark.usefixtures("own_cache")
def test_a_build_is_kept_until_its_source_changes(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    compile_ = cxx.compile_library
    monkeypatch.setattr(cxx, "compile_library", lambda *args: built.append(1) or compile_(*args))
    assert value_of(source) == value_of(source) == 7
    assert len(built) == 1
    source.write_text(SMALL.replace("args->value;", "args->value + 1;"))
    assert value_of(source) == 8
    assert len(built) == 2


def test_a_damaged_build_is_made_again(source: Path, own_cache: Path) -> None:
    """Loading half a library would end the process."""
    assert value_of(source) == 7
    [library] = own_cache.rglob("*.so")
    whole = library.read_bytes()
    library.unlink()  # not overwritten: it is mapped into this process
    library.write_bytes(whole[: len(whole) // 2])
    assert value_of(source) == 7
    assert library.read_bytes() != whole[: len(whole) // 2]


@pytest.mark.usefixtures("own_cache")
def test_the_compilers_reason_is_one_line(source: Path) -> None:
    source.write_text(SMALL.replace("args->value;", "args->typo;"))
    with pytest.raises(BackendError, match=r"g\+\+ refuses small.cu: .*typo") as caught:
        host.load(source, SMALL_ARGS)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("own_cache")
def test_without_a_compiler_the_error_says_what_to_install(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    cxx.compiler_version.cache_clear()
    with pytest.raises(BackendError, match=r"g\+\+.*install"):
        host.load(source, SMALL_ARGS)
