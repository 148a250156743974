"""Our plugin layers where engines run: each GPU's own kernels for the thread that enqueues.

A vendor's registry has one launcher for the whole process. Kernels, however, are loaded into the
CUDA context of one GPU, and two engines may run on two. An engine enqueues its layers on the
thread that enqueues the engine, so that thread says whose kernels they are.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engines.errors import BackendError
from engines.manifest import PlanFacts
from plugins import tensorrt as registry
from plugins.layer import DeviceTensor, Launcher


class _ThreadLauncher(threading.local):
    """See `plugins.layer.Launcher`: runs a layer by what the calling thread has in use."""

    launcher: Launcher | None = None

    def __call__(
        self,
        layer: str,
        inputs: Sequence[DeviceTensor],
        outputs: Sequence[DeviceTensor],
        stream: int,
        workspace: int,
    ) -> None:
        if self.launcher is None:
            raise BackendError(
                f"{layer} was enqueued by a thread that runs no engine; enqueue engines in work "
                "of their stream"
            )
        self.launcher(layer, inputs, outputs, stream, workspace)


_CURRENT = _ThreadLauncher()


def register(trt: Any, plan: PlanFacts) -> None:
    """Let the module `trt` read engines with our layers; called before a plan is deserialised.

    Raises BundleIncompatibleError for a layer, or a version, that this release does not have, and
    BackendError where the registry takes none.
    """
    registry.register(trt, _CURRENT)
    registry.require(trt, plan.plugins)


@contextmanager
def running(launcher: Launcher) -> Iterator[None]:
    """Layers that the calling thread enqueues inside are run by `launcher`."""
    before = _CURRENT.launcher
    _CURRENT.launcher = launcher
    try:
        yield
    finally:
        _CURRENT.launcher = before
