"""What one bundle would take of this machine, and whether it can run here. Loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engines.bundle import Bundle
from engines.compat import reasons
from engines.errors import CapacityError, SsdError
from runtime.devices import DevicePair
from runtime.memory_plan import MemoryPlan, plan_memory, require_room


@dataclass(frozen=True, slots=True)
class BundleCheckup:
    """``free`` has the bytes free on each device of the plan, None where nobody can say; with no
    ``problems`` the bundle can run."""

    path: str
    backend: str
    devices: DevicePair
    plan: MemoryPlan
    free: dict[str, int | None]
    problems: tuple[str, ...]


def examine_bundle(
    bundle: Bundle,
    devices: DevicePair,
    *,
    num_slots: int,
    free_memory: Callable[[str], int | None],
) -> BundleCheckup:
    """Plan the memory of both engines at ``num_slots`` texts at once, and look for reasons why not.

    ``free_memory`` may raise SsdError, such as where a GPU cannot be asked.
    """
    backend = bundle.manifest.backend
    problems = reasons(bundle, backend=backend, batch=num_slots, on_gpu=devices.on_gpu)
    limits = bundle.manifest.limits

    def plan_for(slots: int) -> MemoryPlan:
        return plan_memory(
            bundle.engines,
            devices,
            num_slots=slots,
            num_draft=limits.num_draft,
            num_branches=limits.max_branches,
        )

    plan = plan_for(num_slots)
    free: dict[str, int | None] = {}
    for each in plan.devices:
        try:
            free[each.device] = free_memory(each.device)
        except SsdError as error:
            free[each.device] = None
            problems.append(str(error))
    try:
        require_room(plan_for, num_slots, devices, free.__getitem__)
    except CapacityError as error:
        problems.append(str(error))
    return BundleCheckup(
        str(bundle.path), backend, devices, plan, free, tuple(dict.fromkeys(problems))
    )
