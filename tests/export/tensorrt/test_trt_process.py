"""Compiling in a child: every bad end of it is one line here, and it never outlives its parent."""

from __future__ import annotations

import dataclasses
import errno
import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from engines.codec import encode
from engines.errors import BackendError, UnsupportedModelError
from engines.profiles import ShapeProfile, Span
from export.tensorrt import process
from export.tensorrt.process import CompileRequest, compile_in_process
from tests.export.tensorrt.fake_compiler import PLAN
from tests.export.tensorrt.graphs import ATTENTION, write
from tests.helpers.waiting import within

FAKE = Path(__file__).with_name("fake_package")
SPAN = Span(1, 2, 4)
PROFILE = ShapeProfile("step", SPAN, SPAN, SPAN, Span(1, 64, 128))


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CompileRequest:
    """A sound request for the fake package: the child looks for modules where we do."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("FAKE_TENSORRT", "plan")
    return CompileRequest(
        vendor="tensorrt-rtx",
        onnx_path=str(write(tmp_path, ATTENTION)),
        plan_path=str(tmp_path / "engine.plan"),
        profiles=(PROFILE,),
        capabilities=("8.9",),
        precision="fp16",
        plugins=(),
        timing_cache=None,
    )


def changed(request: CompileRequest, **changes: object) -> CompileRequest:
    return dataclasses.replace(request, **changes)  # type: ignore[arg-type]


def ignore(_what: str, _done: int, _total: int) -> None:
    pass


def test_the_plan_is_in_its_file_and_progress_came_here(
    request_: CompileRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    steps: list[tuple[str, int, int]] = []
    compile_in_process(request_, lambda *step: steps.append(step))
    assert Path(request_.plan_path).read_bytes() == PLAN
    assert steps == [("compiling", 0, 100), ("compiling", 25, 100), ("compiling", 100, 100)]
    assert capfd.readouterr() == ("", ""), "the libraries' chatter came through"


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("abort", "was ended by SIGABRT while compiling: terminate called without an active"),
        ("exit", "stopped with exit code 3 while compiling"),
        ("kill 11", "was ended by SIGSEGV while compiling"),
        ("kill 9", r"was ended by SIGKILL while compiling \(out of memory\?\)"),
        ("kill 35", "was ended by signal 35 while compiling"),
        ("fail", "could not compile .*: no kernel$"),
    ],
)
def test_a_compiler_that_ends_badly_is_one_line(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch, ending: str, words: str
) -> None:
    """In this process an abort would end the tests."""
    monkeypatch.setenv("FAKE_TENSORRT", ending)
    with pytest.raises(BackendError, match=words) as caught:
        compile_in_process(request_, ignore)
    assert "\n" not in str(caught.value)
    assert not Path(request_.plan_path).exists()


def test_the_child_looks_for_modules_in_our_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package lies in site-packages: first there, a child took others for Python's."""
    root = str(Path(process.__file__).resolve().parents[2])
    monkeypatch.setattr(process.sys, "path", ["", "/python", root])
    assert process._module_path() == ["/python", root]
    monkeypatch.setattr(process.sys, "path", ["", "/python"])
    assert process._module_path() == [root, "/python"]


def test_modules_may_lie_in_a_folder_of_any_name(request_: CompileRequest, tmp_path: Path) -> None:
    """$PYTHONPATH took a colon for the end of a folder: no module was found."""
    folder = tmp_path / "a:b 'c' \\ é\udcff"
    folder.mkdir()
    code = (FAKE / "tensorrt_rtx.py").read_text(encoding="utf-8").replace("1.7.1.116", "1.3.0.0")
    (folder / "tensorrt_rtx.py").write_text(code, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with pytest.raises(UnsupportedModelError, match=r"needs tensorrt-rtx 1\.4 or newer"):
            compile_in_process(request_, ignore)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOMEM, "Cannot allocate memory"),
        (errno.EAGAIN, "Resource temporarily unavailable"),
        (errno.EMFILE, "Too many open files"),
    ],
)
@pytest.mark.parametrize("step", ["subprocess.Popen", "tempfile.TemporaryFile"])
def test_a_compiler_that_cannot_be_started_is_not_the_bundles_fault(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch, step: str, number: int, words: str
) -> None:
    """It was told as a folder that cannot be written: choose another --out."""

    def fails(*_arguments: object, **_named: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(step, fails)
    with pytest.raises(BackendError, match=f"^could not start the compiler: {words}$"):
        compile_in_process(request_, ignore)


def test_an_interpreter_that_cannot_be_run_is_named(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(process.sys, "executable", str(tmp_path / "python"))
    words = r"could not start the compiler: No such file or directory \(.*/python\)$"
    with pytest.raises(BackendError, match=words):
        compile_in_process(request_, ignore)


PARENT = """
import json, sys
from engines.codec import decode
from export.tensorrt.process import CompileRequest, compile_in_process
compile_in_process(decode(CompileRequest, json.loads(sys.argv[1])), lambda *_step: None)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_the_child_ends_with_its_parent(
    request_: CompileRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """A parent that is killed cannot kill; its compiler went on for minutes, with its memory."""
    mark = tmp_path / "pid"
    monkeypatch.setenv("FAKE_TENSORRT", f"hang {mark}")
    path = os.pathsep.join([str(FAKE), str(FAKE.parents[2].parent)])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, json.dumps(encode(request_))],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    ) as parent:
        try:
            assert within(60, mark.exists), "it never came to compile"
            parent.send_signal(number)
            parent.wait(timeout=60)
        finally:
            parent.kill()
    child = int(mark.read_text(encoding="utf-8"))
    try:
        assert within(60, lambda: has_ended(child))
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Gone, or left as a zombie where nobody collects orphans."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except FileNotFoundError:
        return True
    return state.split()[0] in "ZX"


def test_a_child_that_ends_in_the_middle_of_a_word_has_not_finished() -> None:
    steps: list[tuple[str, int, int]] = []
    told = io.StringIO('{"step": ["compiling", 1, 2]}\n{"step": ["compi')
    assert not process._follow(told, lambda *step: steps.append(step))
    assert steps == [("compiling", 1, 2)]


def test_the_childs_own_errors_keep_their_kind(request_: CompileRequest) -> None:
    path = Path(request_.onnx_path)
    path.write_bytes(b"not a graph")
    with pytest.raises(BackendError, match="is not an ONNX file"):
        compile_in_process(request_, ignore)
    write(path.parent, ATTENTION)
    with pytest.raises(BackendError, match="has no node for the plugin ssd::Nobody@1"):
        compile_in_process(changed(request_, plugins=("ssd::Nobody@1",)), ignore)


def test_an_operator_that_is_not_taken_is_the_models_fault_here_too(
    request_: CompileRequest, tmp_path: Path
) -> None:
    old = (FAKE / "tensorrt_rtx.py").read_text(encoding="utf-8").replace("1.7.1.116", "1.3.0.0")
    (tmp_path / "tensorrt_rtx.py").write_text(old, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        with pytest.raises(UnsupportedModelError, match=r"needs tensorrt-rtx 1\.4 or newer"):
            compile_in_process(request_, ignore)


def test_a_full_disk_is_told_as_one(request_: CompileRequest) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        compile_in_process(changed(request_, plan_path="/dev/full"), ignore)
    assert caught.value.errno == errno.ENOSPC


def test_a_folder_that_cannot_be_written_is_told_with_its_name(
    request_: CompileRequest, tmp_path: Path
) -> None:
    place = str(tmp_path / "absent" / "engine.plan")
    with pytest.raises(OSError, match="No such file") as caught:
        compile_in_process(changed(request_, plan_path=place), ignore)
    assert caught.value.filename == place


def test_an_interrupt_ends_the_child_at_once(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TensorRT calls nobody back for most of a build, so asking it to stop would take long."""
    mark = tmp_path / "pid"
    monkeypatch.setenv("FAKE_TENSORRT", f"hang {mark}")

    def interrupt(_what: str, done: int, _total: int) -> None:
        if not done:
            return
        assert within(60, mark.exists), "it never came to compile"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile_in_process(request_, interrupt)
    child = int(mark.read_text(encoding="utf-8"))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert not Path(request_.plan_path).exists()
