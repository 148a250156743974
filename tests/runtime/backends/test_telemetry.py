"""ONNX Runtime's wheels report to their makers unless they are told not to before the import."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runtime.backends.telemetry import VARIABLE

READ = "import os; from {module} import {name}; {name}(); print(os.environ[{variable!r}])"


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("0", "0")])
def test_telemetry_is_off_unless_asked_for(given: str | None, found: str) -> None:
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    read = READ.format(
        module="runtime.backends.onnxruntime", name="import_onnxruntime", variable=VARIABLE
    )
    done = subprocess.run(
        [sys.executable, "-c", read],
        env=others if given is None else others | {VARIABLE: given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == found


def test_telemetry_is_off_before_the_package_for_gpus_is_imported() -> None:
    """What it is given does not matter then: it reads the variable when it is loaded."""
    read = (
        "import os, sys; from runtime.backends import onnxruntime_gpu_package as package\n"
        "try:\n    package.import_onnxruntime_gpu()\nexcept Exception:\n    pass\n"
        f"print(os.environ[{VARIABLE!r}])"
    )
    others = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", read], env=others, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
