"""Where this user's downloads and measurements are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$SSD_TRT_CACHE, else $XDG_CACHE_HOME/ssd-trt, else ~/.cache/ssd-trt. Need not exist."""
    own = os.environ.get("SSD_TRT_CACHE")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "ssd-trt"
