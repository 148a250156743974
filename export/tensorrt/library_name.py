"""A name that TensorRT-RTX's parser opens its library by, and that its package does not ship."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
from pathlib import Path

_ASKED_FOR, _SHIPPED = "libtensorrt_rtx.so", "libtensorrt_rtx.so.1"


def provide_library_name() -> None:
    """Make ``dlopen("libtensorrt_rtx.so")`` find the library that is loaded already.

    At the first plugin node TensorRT-RTX's parser opens its own library by a name that the package
    does not ship, and the failure ends the process (abort, no exception). The linker finds a
    loaded library by the name it declares (SONAME), whatever file it came from. So we load an empty
    library that declares the missing name and depends on the real one: symbols looked up in it
    are found there. Its few hundred bytes need no compiler and no file that outlives the call.

    Raises OSError when the system does not load it.
    """
    if not sys.platform.startswith("linux"):
        return
    if not _is_loaded(_SHIPPED) or _can_open(_ASKED_FOR):
        return  # another packaging: it ships the name, or LD_LIBRARY_PATH leads to it
    shim = _empty_library(_ASKED_FOR, needs=_SHIPPED)
    try:
        descriptor = os.memfd_create(_ASKED_FOR)
        try:
            os.write(descriptor, shim)
            ctypes.CDLL(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
    except (AttributeError, OSError):  # no memfd, or no /proc: a file that is gone again at once
        with tempfile.TemporaryDirectory(prefix="ssd-trt-") as folder:
            path = Path(folder) / _ASKED_FOR
            path.write_bytes(shim)
            ctypes.CDLL(str(path))


def _is_loaded(name: str) -> bool:
    return _can_open(name, os.RTLD_NOLOAD)


def _can_open(name: str, mode: int = 0) -> bool:
    try:
        ctypes.CDLL(name, mode)
    except OSError:
        return False
    return True


def _empty_library(soname: str, needs: str) -> bytes:
    """A shared library without code, in this process's own ELF format (64 bits, little endian)."""
    with open("/proc/self/exe", "rb") as file:
        own = file.read(64)
    machine, flags = struct.unpack_from("<H", own, 18)[0], struct.unpack_from("<I", own, 48)[0]
    strings = b"\0" + soname.encode() + b"\0" + needs.encode() + b"\0"
    header, program, symbol = 64, 56, 24  # sizes of the records that the format prescribes
    dynamic_at = header + 2 * program
    num_entries = 7
    symbols_at = dynamic_at + 16 * num_entries
    strings_at = symbols_at + symbol
    size = strings_at + len(strings)
    entries = (
        (14, 1),  # DT_SONAME, as an offset into the strings
        (1, 1 + len(soname) + 1),  # DT_NEEDED
        (5, strings_at),  # DT_STRTAB
        (10, len(strings)),  # DT_STRSZ
        (6, symbols_at),  # DT_SYMTAB
        (11, symbol),  # DT_SYMENT
        (0, 0),  # DT_NULL
    )
    shared_object, load, dynamic, read_write = 3, 1, 2, 6
    return b"".join(
        (
            b"\x7fELF\x02\x01\x01" + bytes(9),
            struct.pack("<HHIQQQ", shared_object, machine, 1, 0, header, 0),
            struct.pack("<IHHHHHH", flags, header, program, 2, 64, 0, 0),
            struct.pack("<II6Q", load, read_write, 0, 0, 0, size, size, 0x10000),
            struct.pack("<II3Q", dynamic, read_write, dynamic_at, dynamic_at, dynamic_at),
            struct.pack("<3Q", 16 * num_entries, 16 * num_entries, 8),
            *(struct.pack("<qQ", tag, value) for tag, value in entries),
            bytes(symbol),
            strings,
        )
    )
