"""Where this user's downloads and measurements are kept."""

from __future__ import annotations

import os
from pathlib import Path

from engines.errors import UsageError


def cache_dir() -> Path:
    """$SSD_TRT_CACHE, else $XDG_CACHE_HOME/ssd-trt, else ~/.cache/ssd-trt. Need not exist.

    Raises UsageError where the folder hangs on a home that this user does not have.
    """
    own, shared = os.environ.get("SSD_TRT_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(own or f"{shared or '~/.cache'}/ssd-trt").expanduser()
    except RuntimeError as error:
        raise UsageError(f"no cache folder ({error}); name one in SSD_TRT_CACHE") from None
