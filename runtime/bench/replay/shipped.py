"""The profiles that come with the package."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable

_ENDING = ".json"


def shipped() -> list[str]:
    """Their names."""
    names = (entry.name for entry in _folder().iterdir())
    return sorted(name.removesuffix(_ENDING) for name in names if name.endswith(_ENDING))


def shipped_file(name: str) -> Traversable:
    """The file of one of them."""
    return _folder() / (name + _ENDING)


def _folder() -> Traversable:
    return files("runtime.bench") / "profiles"
