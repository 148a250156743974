"""Stands in for TensorRT-RTX in a process of its own; $FAKE_TENSORRT says how compiling ends.

plan       a plan
hang PATH  writes this process's id to PATH, then never ends
abort      the process aborts, as the C++ library does
exit       the process exits without a word
kill N     signal N ends the process
fail       no plan, with a reason
"""

from __future__ import annotations

import os
import sys
import time
from enum import IntEnum
from pathlib import Path
from typing import Any

from tests.export.tensorrt.fake_compiler import PLAN, FakeCompiler


class ComputeCapability(IntEnum):
    NONE = 0
    CURRENT = 1
    SM75 = 75
    SM89 = 89
    SM120 = 120


def _compile(monitor: Any) -> bytes | None:
    ending, _, argument = os.environ.get("FAKE_TENSORRT", "plan").partition(" ")
    os.write(1, b"chatter of a library on stdout\n")
    monitor.phase_start("Building engine", None, 4)
    monitor.step_complete("Building engine", 0)
    if ending == "hang":
        Path(argument).with_suffix(".tmp").write_text(str(os.getpid()), encoding="utf-8")
        Path(argument).with_suffix(".tmp").rename(argument)
        time.sleep(600)
    if ending == "abort":
        os.write(2, b"terminate called without an active exception\n")
        os.abort()
    if ending == "exit":
        os._exit(3)
    if ending == "kill":
        os.kill(os.getpid(), int(argument))
    monitor.phase_finish("Building engine")
    return None if ending == "fail" else PLAN


_fake = FakeCompiler("1.7.1.116")
_fake.on_build = _compile
if os.environ.get("FAKE_TENSORRT") == "fail":
    _fake.says = ["IBuilder::build: Error Code 4: API Usage Error (no kernel. In f at a.cpp:1)"]

_module = sys.modules[__name__]
for _name in dir(_fake):
    if not _name.startswith("_"):
        setattr(_module, _name, getattr(_fake, _name))
__version__ = _fake.__version__
