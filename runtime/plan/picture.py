"""The answer as a plot: tokens a second over acceptance, and for each device.

matplotlib draws it, an optional package: a chart is not what this project is about.
"""

from __future__ import annotations

import io
import logging
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from engines.errors import MissingDependencyError, UsageError
from runtime.plan.planner import Curves, Plan, curves
from runtime.trace.chrome import require_writable

FORMATS = (".png", ".svg")
SIZE, DPI = (9.0, 3.6), 120
COLOURS = {"ar": "#777777", "sd": "#b5651d", "ssd": "#3b6fb6"}


def require_drawable(path: Path) -> None:
    """Raise now what ``draw`` would raise after all the work."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path} is neither .png nor .svg; name such a file")
    require_writable(path, "the plot", "--plot")
    _figure()


def draw(plan: Plan, path: Path) -> None:
    """Write the plot in one step, as PNG or SVG by the file's name.

    Raises UsageError where the file cannot be written, MissingDependencyError without matplotlib.
    """
    figure = _figure()
    found = curves(plan.question)
    devices = plan.question.devices
    panels = figure.subplots(1, 2 if devices.draft else 1, squeeze=False)[0]
    _panel(panels[0], plan, found, dict.fromkeys(COLOURS, 1), "tokens/s")
    if devices.draft:
        used = {mode: devices.used_by(mode) for mode in COLOURS}
        _panel(panels[1], plan, found, used, "tokens/s for each device")
    image = io.BytesIO()
    kind = path.suffix.lower().removeprefix(".")
    # No date, no random ids: the same question gives the same file.
    with import_module("matplotlib").rc_context({"svg.hashsalt": "ssd-trt"}):
        facts = {"Date": None} if kind == "svg" else {}
        figure.savefig(image, format=kind, dpi=DPI, metadata=facts)
    whole = Path(os.path.realpath(path))  # a link is followed, not replaced
    unfinished = whole.with_name(f".{os.getpid()}.unfinished")
    try:
        unfinished.write_bytes(image.getvalue())
        unfinished.replace(whole)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise UsageError(
            f"cannot write the plot to {path}: {error.strerror}; name another file with --plot"
        ) from None


def _panel(axes: Any, plan: Plan, found: Curves, devices: dict[str, int], label: str) -> None:
    for mode, colour in COLOURS.items():
        rates = [rate / devices[mode] for rate in found.tokens_s[mode]]
        axes.plot(found.acceptance, rates, color=colour, label=mode)
    here = plan.question.laws.acceptance
    axes.axvline(here, color="#c62828", linestyle=":", label=f"this pair ({here:.2f})")
    for mode, colour in COLOURS.items():
        best = plan.best_of(mode).tokens_s / devices[mode]
        axes.plot([here], [best], "o", color=colour, markersize=4)
    axes.set_xlabel("acceptance of a drafted token")
    axes.set_ylabel(label)
    axes.set_xlim(0, max(here, found.acceptance[-1]))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def _figure() -> Any:
    # It remarks on folders of its own, on stderr, where only errors of ours belong.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        figures = import_module("matplotlib.figure")
    except ImportError:
        raise MissingDependencyError("matplotlib", "plot", "--plot") from None
    return figures.Figure(figsize=SIZE, layout="constrained")
