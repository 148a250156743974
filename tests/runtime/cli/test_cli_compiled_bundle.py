"""A bundle whose engines are compiled, where there is no GPU: refused with what helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cli.entry import main
from tests.engines.tiny_bundles import write_compiled


@pytest.mark.parametrize("keep_onnx", [True, False])
def test_generate_on_a_cpu_names_the_device_and_the_build_that_can_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, keep_onnx: bool
) -> None:
    folder = write_compiled(tmp_path / "b", keep_onnx=keep_onnx)
    argv = ["generate", "--bundle", str(folder), "--prompt", "hello"]
    assert main([*argv, "--device", "cpu"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "compiled by tensorrt-rtx and run on a GPU alone: --device cuda:0" in err
    assert "--backend onnxruntime" in err
    assert main([*argv, "--backend", "onnxruntime"]) == 2
    assert "was built for tensorrt-rtx, this session runs onnxruntime" in capsys.readouterr().err
