"""Real bundles of tiny random models, built once a run of the tests and shared read-only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from engines.bundle import Bundle, open_bundle
from export.build.build import build
from export.build.options import BuildOptions
from runtime.backends.onnxruntime import OrtSession
from runtime.device.api import Device
from tests.helpers.checkpoints import make_draft, make_llama, make_qwen3
from tests.helpers.session_folder import built_once

MAKERS = {"llama": make_llama, "qwen3": make_qwen3}


@cache
def tiny_bundle(
    family: str = "llama",
    precision: str = "fp32",
    max_batch: int = 3,
    num_draft: int = 4,
    max_branches: int = 6,
    tied: bool = True,
    scaled_rope: bool = False,
    max_len: int = 160,
    has_draft: bool = True,
) -> Bundle:
    """A pair: two layers, 64 wide, 320 tokens, with a draft of reduced vocabulary, or without."""
    name = "-".join(("tiny", *map(str, locals().values())))
    rope_scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }

    def make(folder: Path) -> None:
        options: dict[str, object] = {"rope_scaling": rope_scaling} if scaled_rope else {}
        MAKERS[family](folder / "target", hidden=64, intermediate=128, tied=tied, seed=3, **options)
        make_draft(folder / "draft", hidden=64, intermediate=128)
        build(
            BuildOptions(
                target=str(folder / "target"),
                draft=str(folder / "draft") if has_draft else None,
                out=folder / "bundle",
                precision=precision,
                max_len=max_len,
                max_batch=max_batch,
                num_draft=num_draft,
                max_branches=max_branches,
            )
        )

    return open_bundle(built_once(name, make) / "bundle")


def open_session(
    bundle: Bundle, device: Device, role: str = "target", *, num_threads: int = 1
) -> OrtSession:
    manifest = bundle.target if role == "target" else bundle.draft
    assert manifest is not None
    session = OrtSession(
        bundle.path / role,
        manifest,
        device,
        num_threads=num_threads,
        num_slots=manifest.limits.max_batch,
    )
    session.load()
    return session
