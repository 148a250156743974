"""The packages' sources, and those of them that need more than numpy to be imported."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"engines": 0, "plugins": 1, "runtime": 2, "export": 3}
"""Each with its floor."""

GRAPH_BUILDERS = "export/graph/*.py"
"""They are made of onnx and onnx_ir through and through; the commands import them late."""

ROUTES = "runtime/serve/http/*.py"
"""They are made of FastAPI, pydantic and uvicorn; the command imports them late."""

ROUTER = "runtime/serve/ray/router.py"
"""A subclass of Ray Serve's own; Ray alone imports it. Ray is imported in this folder only."""


def sources(root: Path) -> list[Path]:
    """Every module of the packages below ``root``."""
    return [file for name in PACKAGES for file in sorted((root / name).rglob("*.py"))]
