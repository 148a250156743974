"""A bundle whose engines are compiled: refused by name, with a command that builds what can run."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cli.entry import main
from tests.engines.tiny_bundles import write_compiled


@pytest.mark.parametrize("keep_onnx", [True, False])
def test_generate_names_what_cannot_run_yet(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keep_onnx: bool
) -> None:
    folder = write_compiled(tmp_path / "b", keep_onnx=keep_onnx)
    assert main(["generate", "--bundle", str(folder), "--prompt", "hello"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "built for tensorrt-rtx" in err
    assert "this version builds TensorRT engines and cannot run them yet" in err
    assert "--backend onnxruntime" in err
