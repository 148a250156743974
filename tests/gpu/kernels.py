"""The kernels part: every trial against numpy, and timed against the same work in torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from plugins.cuda import registry
from plugins.cuda.device import DeviceKernel
from plugins.cuda.measure import measure_all
from plugins.cuda.torch_gpu import TorchGpu
from tests.gpu.parts import Options
from tests.gpu.report import Case, Outcome

RESERVE_S = 8.0
"""For the start of the process and the trial that runs when the time is over."""


def run(options: Options) -> list[Case]:
    budget_s = max(1.0, options.budget_s - RESERVE_S)
    return cases_of(measure_all(TorchGpu(), registry.NAMES, DeviceKernel, budget_s=budget_s))


def cases_of(found: Mapping[str, Any]) -> list[Case]:
    """One case a trial from what `measure_all` returns, and one for a fault of the GPU."""
    cases = [_case(each) for each in found["measured"]]
    cases += [Case(name, Outcome.LEFT_OUT, "no time was left") for name in found["left_out"]]
    if found["fault"] is not None:
        cases.append(Case("the GPU", Outcome.FAILED, found["fault"]))
    return cases


FIGURES = ("kernel_s", "torch_s", "bytes_per_s", "num_bytes", "floor_s")


def _case(measured: Mapping[str, Any]) -> Case:
    errors = measured["errors"]
    return Case(
        f"{measured['kernel']}: {measured['label']}",
        Outcome.FAILED if errors else Outcome.PASSED,
        "; ".join(errors),
        measured["kernel_s"] or 0.0,
        {name: measured[name] for name in FIGURES},
    )
