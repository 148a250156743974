"""Our kernels in ONNX Runtime's sessions: taken where they can be had, and named."""

from __future__ import annotations

import logging
from pathlib import Path

import onnxruntime
import pytest

from plugins.ort.library import SWITCH, Library, find
from runtime.backends import cpu_kernels
from runtime.backends.onnxruntime import runtime_identity


class Options:
    """What an ONNX Runtime of ours would be told."""

    def __init__(self) -> None:
        self.libraries: list[str] = []

    def add_session_config_entry(self, *entry: str) -> None:
        pass

    def register_custom_ops_library(self, path: str) -> None:
        if "bad" in path:
            raise RuntimeError("undefined symbol")
        self.libraries.append(path)


class FAKE:
    SessionOptions = Options
    __version__ = "1.99"


def use(monkeypatch: pytest.MonkeyPatch, library: Library) -> None:
    monkeypatch.setattr(cpu_kernels, "find", lambda: library)


def test_a_session_gets_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Library(Path("/good.so"), identity="ours"))
    options = cpu_kernels.session_options(FAKE, 3)
    assert (options.libraries, options.intra_op_num_threads) == (["/good.so"], 3)
    assert cpu_kernels.kernels(FAKE).identity == "ours"


@pytest.mark.parametrize("is_missed", [True, False])
def test_without_a_library_a_session_gets_none(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_missed: bool
) -> None:
    """Told once, and only where this machine could have one."""
    cpu_kernels._tell.cache_clear()
    use(monkeypatch, Library(None, "because", is_missed=is_missed))
    assert cpu_kernels.session_options(FAKE, 1).libraries == []
    assert cpu_kernels.kernels(FAKE).reason == "because"
    expected = (
        "because. ONNX Runtime's own kernels run (SSD_TRT_CPU_KERNELS=off is silent about it)"
    )
    assert [each.getMessage() for each in caplog.records] == [expected] * is_missed


def test_a_library_that_is_refused_is_left_out_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use(monkeypatch, Library(Path("/bad.so"), identity="ours"))
    with caplog.at_level(logging.WARNING):
        assert cpu_kernels.session_options(FAKE, 1).libraries == []
        found = cpu_kernels.kernels(FAKE)
    assert (found.path, found.identity) == (None, "ONNX Runtime's own")
    assert found.reason == "ONNX Runtime 1.99 does not take /bad.so: undefined symbol"
    assert [record.getMessage() for record in caplog.records] == [
        f"{found.reason}; its own kernels run"
    ]


def test_a_library_that_is_gone_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A cache is emptied while a server runs, and its engines are loaded anew."""
    cpu_kernels._refusal.cache_clear()
    there = [Library(Path("/good.so")), Library(Path("/other.so"))]
    gone: list[str] = []

    class Emptied(Options):
        def register_custom_ops_library(self, path: str) -> None:
            if path in gone:
                raise RuntimeError("no such file")
            super().register_custom_ops_library(path)

    fake = type("Fake", (), {"SessionOptions": Emptied, "__version__": "1.99"})
    monkeypatch.setattr(cpu_kernels, "find", lambda: there[0])
    monkeypatch.setattr(cpu_kernels, "forget", lambda: there.pop(0))
    assert cpu_kernels.session_options(fake, 1).libraries == ["/good.so"]
    gone.append("/good.so")
    assert cpu_kernels.session_options(fake, 1).libraries == ["/other.so"]
    assert "no such file" in caplog.text


def test_a_file_that_is_no_library_is_refused_by_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "no.so"
    path.write_bytes(b"no library")
    refusal = cpu_kernels._refusal(onnxruntime, path)
    assert refusal is not None
    assert str(path) in refusal


def test_what_is_measured_is_kept_by_the_kernels_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "off")
    assert "ONNX Runtime's own" in runtime_identity()
    monkeypatch.setenv(SWITCH, "on")
    assert find().identity in runtime_identity()
