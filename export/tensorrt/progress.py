"""A build's progress in TensorRT's nested phases, as one rising share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, done so far, total). Raising stops the build."""

STAGE = "compiling"
PARTS = 100


@dataclass(slots=True)
class _Phase:
    parent: str | None
    num_steps: int
    done: int = 0


class BuildProgress:
    """Follows one build; ``error`` is what ``report`` raised to stop it.

    The share of a phase is its finished steps and the shares of the phases that run inside it. It
    never falls, and is reported when a hundredth more is done.
    """

    def __init__(self, report: Progress) -> None:
        self.error: BaseException | None = None
        self._report = report
        self._phases: dict[str, _Phase] = {}
        self._shown = -1

    def start(self, name: str, parent: str | None, num_steps: int) -> None:
        self._phases[name] = _Phase(parent, max(1, num_steps))
        self._show()

    def step(self, name: str, index: int) -> bool:
        """Whether to go on."""
        if name in self._phases:
            self._phases[name].done = index + 1
        self._show()
        return self.error is None

    def finish(self, name: str) -> None:
        """Forget a phase; its parent counts it when it reports the step."""
        if self._phases.get(name, _Phase(None, 1)).parent is not None:
            del self._phases[name]

    def complete(self) -> None:
        """All is done."""
        self._tell(PARTS)

    def _show(self) -> None:
        root = next((name for name, p in self._phases.items() if p.parent is None), None)
        if root is not None:
            self._tell(int(PARTS * self._share(root)))

    def _share(self, name: str) -> float:
        phase = self._phases[name]
        inside = [self._share(n) for n, p in self._phases.items() if p.parent == name]
        return min(1.0, (phase.done + min(1.0, sum(inside))) / phase.num_steps)

    def _tell(self, done: int) -> None:
        if done <= self._shown or self.error is not None:
            return
        self._shown = done
        try:
            self._report(STAGE, done, PARTS)
        except BaseException as error:  # it must not pass through TensorRT's frames
            self.error = error


def monitor(module: Any, progress: BuildProgress) -> Any:
    """An IProgressMonitor of ``module`` that tells ``progress``."""

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)

        def phase_start(self, name: str, parent: str | None, num_steps: int) -> None:
            progress.start(name, parent, num_steps)

        def step_complete(self, name: str, index: int) -> bool:
            return progress.step(name, index)

        def phase_finish(self, name: str) -> None:
            progress.finish(name)

    return Monitor()
