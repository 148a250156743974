"""Pythons of their own that load the library: how they start it, hold their lock, and end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def in_another_python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_python_that_ends_with_a_model_open_ends_well(library: Path, bundle: Path) -> None:
    """Its interpreter is gone when the library's exit handler comes."""
    script = f"""
import ctypes
library = ctypes.CDLL({str(library / "lib" / "libssd_trt.so")!r})
model, request = ctypes.c_void_p(), ctypes.c_void_p()
bundle, options = {str(bundle)!r}.encode(), b'{{"mode": "ar"}}'
assert library.ssd_model_open(bundle, options, ctypes.byref(model)) == 0
assert library.ssd_request_begin(model, b"a", None, ctypes.byref(request)) == 0
"""
    done = in_another_python(script)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_exit_that_holds_the_lock_of_python_lets_an_opening_end(
    library: Path, bundle: Path
) -> None:
    """As where an extension module calls exit: it waited for an opening that waited for the lock,
    until its 30 seconds were over."""
    script = f"""
import ctypes, os, sys, threading
library = ctypes.CDLL({str(library / "lib" / "libssd_trt.so")!r})
model = ctypes.c_void_p()
assert library.ssd_model_open(b"/no/such", None, ctypes.byref(model)) == 7  # ssd-trt is found now
from runtime.embed.bridge import Model
whole, begun, exits = Model.open, threading.Event(), threading.Event()
def slow_open(*args, **options):
    begun.set()
    exits.wait()
    sys.setswitchinterval(0.005)
    opened = whole(*args, **options)
    os.write(1, b"opened")
    return opened
Model.open = slow_open
arguments = {str(bundle)!r}.encode(), b'{{"mode": "ar"}}', ctypes.byref(model)
threading.Thread(target=library.ssd_model_open, args=arguments).start()
begun.wait()
sys.setswitchinterval(1000)  # seconds: nobody takes the lock from this thread any more
exits.set()
ctypes.PyDLL(None).exit(0)
"""
    done = in_another_python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "opened", "")


def test_callers_that_hold_the_lock_of_python_start_the_library_together(library: Path) -> None:
    """As an extension module may: one would wait for the start with the lock that it takes."""
    script = f"""
import ctypes, threading
library = ctypes.PyDLL({str(library / "lib" / "libssd_trt.so")!r})
statuses = []
def open_nothing():
    statuses.append(library.ssd_model_open(b"/no/such", None, ctypes.byref(ctypes.c_void_p())))
threads = [threading.Thread(target=open_nothing) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
print(statuses)
"""
    done = in_another_python(script)
    assert (done.stdout, done.stderr) == ("[7, 7, 7, 7]\n", "")


def test_a_python_that_has_used_capsules_can_be_joined(library: Path) -> None:
    """Up to Python 3.11 cffi takes a field of their type for a lock: a process that had imported
    torch was aborted."""
    script = f"""
import ctypes, _datetime
for _ in range(2000):  # until the type has a version tag
    hasattr(_datetime.datetime_CAPI, "nothing")
library = ctypes.CDLL({str(library / "lib" / "libssd_trt.so")!r})
print(library.ssd_model_open(b"/no/such", None, ctypes.byref(ctypes.c_void_p())))
"""
    done = in_another_python(script)
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")
