"""The parts of the check: what each needs, how long it may take, and what it does.

A part runs in a process of its own (`check`), so that a fault of the GPU, after which every call in
a process fails, ends one part and not the check.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from tests.gpu.report import Case

DEFAULT_BUNDLE = Path("engines/bundles/demo")


@dataclass(frozen=True, slots=True)
class Options:
    """What a part is told.

    bundles   folders of bundles to generate with; empty: the default one, where it was built
    device    the GPU, as in ``cuda:0``
    budget_s  seconds that the part may take
    """

    bundles: tuple[Path, ...] = ()
    device: str = "cuda:0"
    budget_s: float = 60.0

    @property
    def ordinal(self) -> int:
        return int(self.device.partition(":")[2])


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    needs    importable names without which it is skipped
    limit_s  the longest that it may take, in seconds
    run      what it does, in a process of its own; what it raises fails the part
    """

    name: str
    needs: tuple[str, ...]
    limit_s: float
    run: Callable[[Options], list[Case]]

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of ``needs`` that are not installed."""
        return tuple(name for name in self.needs if not _is_installed(name))


def _run(module: str, options: Options) -> list[Case]:
    # Imported in the part's own process: its packages may be missing here.
    found: list[Case] = import_module(f"tests.gpu.{module}").run(options)
    return found


_CUDA = ("numpy", "cuda.core", "cuda.bindings")
_ALL = (
    Part("contract", ("pytest", "hypothesis", *_CUDA), 45, partial(_run, "contract")),
    Part("replay", _CUDA, 40, partial(_run, "replay")),
    Part("generation", ("tokenizers", *_CUDA), 60, partial(_run, "generation")),
    Part("kernels", ("torch", *_CUDA), 140, partial(_run, "kernels")),
)
PARTS: Mapping[str, Part] = {part.name: part for part in _ALL}
"""By name, in the order in which they run: what all else stands on first, and last the one that can
leave out the rest of its cases when time runs out."""


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # of a package above
        return False
