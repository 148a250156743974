"""A tiny pair compiled with TensorRT-RTX, built once a run of the tests and shared read-only."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from unittest import mock

from engines.bundle import Bundle, open_bundle
from export.build.build import build
from export.build.options import BuildOptions
from export.tensorrt.capabilities import local_gpu
from tests.helpers.checkpoints import make_draft, make_llama
from tests.helpers.session_folder import built_once


@cache
def compiled_bundle(precision: str, seed: int = 3) -> Bundle:
    """Two layers, 64 wide, 320 tokens, with a draft of reduced vocabulary; needs the rtx extra."""

    def make(folder: Path) -> None:
        make_llama(folder / "target", hidden=64, intermediate=128, tied=True, seed=seed)
        make_draft(folder / "draft", hidden=64, intermediate=128)
        gpu = local_gpu()
        options = BuildOptions(
            target=str(folder / "target"),
            draft=str(folder / "draft"),
            out=folder / "bundle",
            backend="tensorrt-rtx",
            precision=precision,
            max_len=160,
            max_batch=3,
            max_branches=6,
            capabilities=("8.9" if gpu is None else gpu.capability,),
        )
        # A cache of its own: tests must neither read nor fill the user's.
        with mock.patch.dict(os.environ, SSD_TRT_CACHE=str(folder / "cache")):
            build(options)

    return open_bundle(built_once(f"compiled-{precision}-{seed}", make) / "bundle")
